"""Find the frequency w for which sin(w x) solves u'' = -pi^2 sin(pi x): by a loop of one's own, and by a `Trainer`."""

import math

import quabla as qb


def u(x, w):  # one collocation point, scalar x
    return qb.sin(x * w)


u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))  # exact d2u/dx2 per point


def loss(w, x):
    return qb.mean((u_xx(x, w) + math.pi**2 * qb.sin(math.pi * x)) ** 2)


x, w = qb.linspace(0.05, 0.95, 8), qb.array(2.5)
opt = qb.optim.Adam(learning_rate=0.05)

trainer = qb.optim.Trainer(loss, w, opt, x)  # keeps parameters, moments and data on the device

state = opt.init(w)
step = qb.jit(qb.value_and_grad(loss))  # traced and compiled on first call
for _ in range(300):
    value, g = step(w, x)
    w, state = opt.update(w, g, state)
print(f"loop:    w = {w.item():.6f}, loss = {value.item():.1e}")

for _ in range(300):
    trainer.step()  # one native call: loss, gradient and update
print(f"trainer: w = {trainer.params.item():.6f}, loss = {trainer.loss().item():.1e}")
