import torch


def inputs(problem, seed, device="cpu"):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    dtype = getattr(torch, problem.dtype)
    return {"x": torch.randn(problem["N"], generator=generator).to(dtype).to(device)}


def reference(problem, inputs):
    y = inputs["x"].double()
    for _ in range(problem["times"]):
        y = 2.0 * y + problem["shift"]
    return {"y": y}
