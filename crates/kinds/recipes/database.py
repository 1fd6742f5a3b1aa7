# An SQLite database like that of a web service: users, events with JSON, an index.
import json, os, random, sqlite3, sys
random.seed(11)
db = sqlite3.connect(os.path.join(sys.argv[1], "database"))
db.execute("create table user(id integer primary key, name text, mail text, city text, joined real)")
db.execute("create table event(id integer primary key, user integer, kind text, at real, body text)")
names = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(4, 9))) for _ in range(3000)]
cities = random.choices(names, k=200)
for n in range(30000):
    name = random.choice(names).title() + " " + random.choice(names).title()
    db.execute("insert into user values(?,?,?,?,?)",
        (n, name, name.lower().replace(" ", ".") + "@example.org", random.choice(cities), 1.6e9 + random.random() * 1e8))
for n in range(80000):
    body = json.dumps({"path": "/" + random.choice(names), "status": random.choice([200, 200, 200, 304, 404]),
        "ms": round(random.expovariate(0.1), 2), "agent": "client/%d.%d" % (random.randint(1, 9), random.randint(0, 30))})
    db.execute("insert into event values(?,?,?,?,?)", (n, random.randint(0, 29999), random.choice(["view", "click", "buy"]),
        1.7e9 + n * 3.7 + random.random(), body))
db.execute("create index event_by_user on event(user, at)")
db.commit()
