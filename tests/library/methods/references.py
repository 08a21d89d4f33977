"""Two right programs for each family of problems, as a good model would write them."""

from __future__ import annotations

from library.methods.writer import CHOICES, POWERS

_DATES = "from datetime import date\n\n"
REFERENCES: dict[str, tuple[str, str]] = {
    "modular power": POWERS,
    "choices": CHOICES,
    "linear system": (
        "def solve(a, b, c, d, e, f):\n    return (c * e - b * f) / (a * e - b * d)\n",
        "def solve(a, b, c, d, e, f):\n    for x in range(100):\n        for y in range(100):\n"
        "            if a * x + b * y == c and d * x + e * y == f:\n                return x\n",
    ),
    "number base": (
        "def solve(a, b):\n    out = ''\n    while a:\n        out = str(a % b) + out\n"
        "        a //= b\n    return out\n",
        "def solve(a, b):\n    return a if a < b else solve(a // b, b) * 10 + a % b\n",
    ),
    "simple interest": (
        "def solve(a, b, c):\n    return a * b * c // 100\n",
        "def solve(a, b, c):\n    r = 0\n    for _ in range(c):\n        r += a * b / 100\n"
        "    return r\n",
    ),
    "common multiple": (
        "import math\n\ndef solve(a, b):\n    return a * b // math.gcd(a, b)\n",
        "def solve(a, b):\n    n = a\n    while n % b:\n        n += a\n    return n\n",
    ),
    "arithmetic sum": (
        "def solve(a, b, c):\n    return a * (2 * b + (a - 1) * c) / 2\n",
        "def solve(a, b, c):\n    return sum(b + i * c for i in range(a))\n",
    ),
    "weekday": (
        f"{_DATES}def solve(a):\n    return date.fromisoformat(a).strftime('%A')\n",
        "DAYS = ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday']\n"
        f"{_DATES}def solve(a):\n    y, m, d = map(int, a.split('-'))\n"
        "    return DAYS[(date(y, m, d).toordinal() - 1) % 7]\n",
    ),
    "days between": (
        f"{_DATES}def solve(a, b):\n"
        "    return (date.fromisoformat(b) - date.fromisoformat(a)).days\n",
        f"{_DATES}def solve(a, b):\n    y, m, d = map(int, a.split('-'))\n"
        "    u, v, w = map(int, b.split('-'))\n"
        "    return date(u, v, w).toordinal() - date(y, m, d).toordinal()\n",
    ),
    "time of day": (
        "def solve(a, b):\n    h, m = map(int, a.split(':'))\n    t = h * 60 + m + b\n"
        "    return f'{t // 60 % 24:02d}:{t % 60:02d}'\n",
        "from datetime import datetime, timedelta\n\ndef solve(a, b):\n"
        "    return (datetime.strptime(a, '%H:%M') + timedelta(minutes=b)).strftime('%H:%M')\n",
    ),
    "unit conversion": (
        "T = {'inches feet': 12, 'inches yards': 36, 'feet yards': 3, 'feet miles': 5280,"
        " 'yards miles': 1760}\n"
        "def solve(a, b, c):\n    return T[a + ' ' + c] * b\n",
        "def solve(a, b, c):\n    n = {'inches': 1, 'feet': 12, 'yards': 36, 'miles': 63360}\n"
        "    return b * n[c] // n[a]\n",
    ),
    "word backwards": (
        "def solve(a):\n    return a[::-1].upper()\n",
        "def solve(a):\n    out = ''\n    for c in a:\n        out = c.upper() + out\n"
        "    return out\n",
    ),
    "graph distance": (
        "def solve(a, b, c):\n    seen, edge, n = {b}, {b}, 0\n    while c not in seen:\n"
        "        edge = {v for e in a for u, v in (e, e[::-1]) if u in edge} - seen\n"
        "        seen |= edge\n        n += 1\n        if not edge:\n            return -1\n"
        "    return n\n",
        "def solve(a, b, c):\n"
        "    far = {b: 0}\n    todo = [b]\n    for node in todo:\n        for u, v in a:\n"
        "            for p, q in ((u, v), (v, u)):\n"
        "                if p == node and q not in far:\n"
        "                    far[q] = far[p] + 1\n                    todo.append(q)\n"
        "    return far[c]\n",
    ),
    "median": (
        "import statistics\n\ndef solve(a):\n    return statistics.median(a)\n",
        "def solve(a):\n    return sorted(a)[len(a) // 2]\n",
    ),
}
