"""From variants to cubins: finding the compiler, composing sources, parallel builds, the cache."""
