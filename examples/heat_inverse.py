"""Find the conductivity k in u_t = k u_xx from noisy measurements of u, with fresh collocation points in every step.

A rod is at sin(pi x) at first and its ends are kept at zero; both are built into the network. The parameters are a tree
of weights and the logarithm of k. `batch_argnums` names the arguments that every step replaces.
"""

import math

import numpy as np

import quabla as qb

TRUE, NOISE, STEPS = 0.15, 0.01, 6_000
rng = np.random.default_rng(0)


def layer(m, n):
    return {"w": qb.array(rng.normal(0.0, math.sqrt(2.0 / (m + n)), (m, n))), "b": qb.zeros(n)}


def u(x, t, net):  # at one point: x and t are scalars
    z = qb.stack([x, t])
    for p in net[:-1]:
        z = qb.tanh(z @ p["w"] + p["b"])
    z = z @ net[-1]["w"] + net[-1]["b"]
    return qb.sin(math.pi * x) + t * x * (1.0 - x) * z[0]


everywhere = {"in_axes": (0, 0, None)}
u_of_all = qb.vmap(u, **everywhere)
u_t = qb.vmap(qb.grad(u, argnums=1), **everywhere)
u_xx = qb.vmap(qb.grad(qb.grad(u)), **everywhere)


def loss(params, x, t, measured, points):
    net, k = params["net"], qb.exp(params["log_k"])
    misfit = u_of_all(x, t, net) - measured
    residual = u_t(*points, net) - k * u_xx(*points, net)
    return qb.mean(misfit**2) + 0.01 * qb.mean(residual**2)


x, t = rng.random((2, 200))
measured = np.exp(-TRUE * math.pi**2 * t) * np.sin(math.pi * x) + rng.normal(0.0, NOISE, 200)
params = {"net": [layer(2, 16), layer(16, 16), layer(16, 1)], "log_k": 0.0}
points = tuple(rng.random((2, 64)))

trainer = qb.optim.Trainer(loss, params, qb.optim.Adam(3e-3), x, t, measured, points, batch_argnums=3)
for i in range(1, STEPS + 1):
    trainer.step(tuple(rng.random((2, 64))))
    if i % 1000 == 0:
        k = math.exp(trainer.params["log_k"].item())
        print(f"step {i}: loss {trainer.loss().item():.2e}, k = {k:.4f}")
print(f"true k = {TRUE}, off by {abs(k / TRUE - 1.0):.1%}")
