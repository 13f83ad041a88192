import torch

KINDS = ("normal", "uniform")


def inputs(problem, seed, kind="normal", device="cpu"):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    draw = torch.randn if kind == "normal" else torch.rand
    m, n, k = problem["M"], problem["N"], problem["K"]
    shapes = {"x": (m, k), "weight": (n, k), "bias": (n,)}
    return {name: draw(*shape, generator=generator).to(device) for name, shape in shapes.items()}


def reference(problem, inputs):
    product = inputs["x"].double() @ inputs["weight"].double().t()  # [M, N]
    y = torch.relu(product + inputs["bias"].double())
    return {"y": y, "row_sum": y.sum(dim=1)}
