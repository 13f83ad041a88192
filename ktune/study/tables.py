"""The ledger's tables. Each measurement is kept whole in `payload`; the other columns are for finding and for SQL."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# In `meta` of a study: the numbers of those trials that do not count among its total.
EXTRA_TRIALS = "extra_trials"

studies = Table(
    "studies",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(255), nullable=False, index=True),
    Column("family", String(255), nullable=False),
    Column("problem", Text, nullable=False),
    Column("problem_label", String(255), nullable=False),
    Column("space_digest", String(64), nullable=False),
    Column("gpu_name", String(255), nullable=False),
    Column("source", String(16), nullable=False),
    Column("format", Integer, nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("opened_at", String(40), nullable=False),
    Column("meta", Text, nullable=False),
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", Integer, ForeignKey("studies.id"), nullable=False),
    Column("trial", Integer, nullable=False),
    Column("configuration_id", Text, nullable=False),
    Column("configuration_digest", String(64), nullable=False),
    Column("build_key", String(64), nullable=False),
    Column("code_digest", String(64), nullable=False),
    Column("problem_label", String(255), nullable=False),
    Column("status", String(16), nullable=False),
    Column("effort", String(16), nullable=False),
    Column("source", String(16), nullable=False),
    Column("gpu_uuid", String(64), nullable=False),
    Column("time_cold_median_us", Float),
    Column("time_cold_ci_low_us", Float),
    Column("time_cold_ci_high_us", Float),
    Column("time_hot_median_us", Float),
    Column("registers", Integer),
    Column("taken_over", Boolean, nullable=False),
    Column("finished_at", String(40), nullable=False),
    Column("payload", Text, nullable=False),
    # Recording the same result twice (after a fault, from two places) leaves one row.
    Column("payload_digest", String(64), nullable=False),
    UniqueConstraint("study_id", "payload_digest", name="one_row_a_result"),
    Index("measurement_of", "study_id", "configuration_digest", "effort"),
)

claims = Table(
    "claims",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", Integer, ForeignKey("studies.id"), nullable=False),
    Column("trial", Integer, nullable=False),
    Column("configuration_digest", String(64), nullable=False),
    Column("problem_label", String(255), nullable=False),
    Column("effort", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("gpu_name", String(255), nullable=False),
    # Seconds since 1970, so that hosts of different time zones agree.
    Column("deadline_s", Float, nullable=False),
    UniqueConstraint("study_id", "configuration_digest", "problem_label", "effort", name="one_claim_a_variant"),
)
