# Parsed modules and JSON, objects, texts and numbers.
import ast, json, os, random, sys
random.seed(7)
folder = os.path.dirname(os.__file__)
sources = [open(os.path.join(folder, f), encoding="utf-8", errors="replace").read()
    for f in sorted(os.listdir(folder)) if f.endswith(".py")][:80]
trees = [ast.parse(s) for s in sources[:25]]
class Order:
    def __init__(self, n):
        self.id, self.total = n, random.random() * 100
        self.lines = [("article-%d" % random.randrange(5000), random.randrange(9)) for _ in range(random.randrange(1, 8))]
orders = {n: Order(n) for n in range(40000)}
parsed = json.loads(json.dumps([{"id": o.id, "total": o.total, "lines": o.lines} for o in list(orders.values())[:15000]]))
words = {}
for s in sources:
    for w in s.split(): words[w] = words.get(w, 0) + 1
print("memory heap-python", os.getpid(), flush=True)
sys.stdin.readline()
