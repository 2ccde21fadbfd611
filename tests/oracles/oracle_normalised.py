"""NAG (Ross et al. 2013, Algorithm 2) with the closed form for importance weights (Karampatziakis and Langford 2011),

by coordinate in plain Python, for a shared and personal linear learners that see examples late.
"""

from __future__ import annotations

import math

import numpy as np


class Learner:
    """One linear learner with NAG's letters: w, s, G, N and t."""

    def __init__(self, w):
        self.w, self.s, self.G, self.N, self.t = list(w), [0.0] * len(w), [0.0] * len(w), 0.0, 0.0

    def learn(self, examples, lr):
        """Examples (x, slope of the squared loss at their prediction, importance) that come at once."""
        d = range(len(self.w))
        for i in d:
            largest = max(abs(x[i]) for x, _, _ in examples)
            if largest > self.s[i]:
                self.w[i] *= self.s[i] / largest if self.s[i] > 0 else 1.0
                self.s[i] = largest
        for x, _, h in examples:
            self.N += h * sum((x[i] / self.s[i]) ** 2 for i in d if self.s[i] > 0)
            self.t += h
        g = [sum(h * slope * x[i] for x, slope, h in examples) for i in d]
        self.G = [self.G[i] + g[i] ** 2 for i in d]
        rate = [math.sqrt(self.t / self.N) / (self.s[i] * math.sqrt(self.G[i])) if self.G[i] > 0 else 0.0 for i in d]
        per_update = sum(h * rate[i] * x[i] ** 2 for x, _, h in examples for i in d)
        if per_update > 0:
            # Of one example: p - y shrinks by exp(-2 lr h x'Ax), and slope = 2 (p - y).
            length = (1 - math.exp(-2 * lr * per_update)) / (2 * per_update)
            self.w = [self.w[i] - length * rate[i] * g[i] for i in d]


def simulate(clients, rounds, down, up, lam, batch, alignment, *, start, rates, factor=2.0):
    """Every model with its time index; the example of round t that is learned in round t + delay keeps its slope.

    ``factor`` times p - y is the slope: 2 for (p - y)^2. The shared and the personal learners have their own ``rates``.
    """
    count = len(clients)
    server, own = Learner(start["u"]), [Learner(start["v"]) for _ in clients]
    wg, wl = [list(server.w)], [[list(one.w) for one in own]]

    def rows(i, t):
        n = len(clients[i]["y"])
        batches = [range(k, min(k + batch, n)) for k in range(0, n, batch)]
        return batches[t % len(batches)]

    def examples(i, t, u, v, column, weight):
        triples = []
        for k in rows(i, t):
            a, b, y = (clients[i][c][k] for c in "aby")
            slope = factor * (a @ np.array(u) + b @ np.array(v) - y)
            triples.append((list(map(float, a if column == "a" else b)), float(slope), weight / len(rows(i, t))))
        return triples

    for t in range(rounds):
        arrivals = []
        for i in range(count):
            s = t - up[i]
            if s >= 0:
                at = wg[t] if alignment == "misaligned" else wg[max(0, s - down[i])]
                arrivals += examples(i, s, at, wl[s][i], "a", lam[i])
            r = t - (down[i] + up[i] if alignment == "aligned" else 0)
            if r >= 0:
                own[i].learn(examples(i, r, wg[max(0, r - down[i])], wl[r][i], "b", 1.0), rates[1])
        if arrivals:
            server.learn(arrivals, rates[0])
        wg.append(list(server.w))
        wl.append([list(one.w) for one in own])
    return wg[-1], wl[-1]
