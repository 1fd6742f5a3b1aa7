# A Redis server with sessions, cached pages, carts, rankings, queues and counters.
import glob, json, os, random, re, socket, subprocess, sys, time
random.seed(23)
folder = sys.argv[1]


class Client:
    """Sends commands whose replies are one line each, two hundred at a time."""

    def __init__(self, path):
        self.socket, self.batch = socket.socket(socket.AF_UNIX), []
        for _ in range(200):
            try:
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit("redis-server does not listen")
        self.replies = self.socket.makefile("rb")

    def put(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.batch.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        if len(self.batch) == 200:
            self.settle()

    def settle(self):
        self.socket.sendall(b"".join(self.batch))
        for _ in self.batch:
            if self.replies.readline().startswith(b"-"):
                sys.exit("redis-server refuses a command")
        self.batch = []


def fill(client):
    pages = sorted(glob.glob("/usr/share/doc/installation-guide-amd64/en/*.html"))
    texts = {page: open(page, "rb").read() for page in pages}
    words = sorted({word.decode() for text in texts.values() for word in re.findall(rb"[A-Za-z]{4,12}", text)})
    word = lambda: random.choice(words)
    for page, text in texts.items():
        client.put("SET", "page:" + os.path.basename(page), text)
    for _ in range(20000):
        session = {"user": random.randrange(9000), "csrf": "%016x" % random.getrandbits(64),
            "flash": [word() for _ in range(random.randrange(4))], "seen": 1.7e9 + random.random() * 1e6}
        client.put("SET", "session:%032x" % random.getrandbits(128), json.dumps(session), "EX", random.randrange(3600, 90000))
    for user in range(9000):
        client.put("HSET", "user:%d" % user, "name", word().title() + " " + word().title(), "mail", word() + "@example.org",
            "visits", random.randrange(5000), "balance", "%.2f" % random.expovariate(0.01), "language", random.choice(["en", "de", "ja"]))
        for _ in range(random.randrange(5)):
            client.put("ZADD", "ranking:" + random.choice(words[:300]), "%.3f" % random.gauss(50, 20), "user:%d" % user)
        for _ in range(random.randrange(4)):
            client.put("SADD", "follows:%d" % user, random.randrange(9000))
    for number in range(30000):
        job = {"job": number, "for": random.randrange(9000), "what": word(), "tries": random.randrange(3)}
        client.put("RPUSH", "queue:" + random.choice(["mail", "thumbnail", "index"]), json.dumps(job))
        client.put("INCRBY", "count:%s:%d" % (random.choice(words[:2000]), random.randrange(24)), random.randrange(1, 50))
    client.settle()


socket_path = os.path.join(folder, "redis.sock")
server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "", "--dir", folder],
    stdout=subprocess.DEVNULL)
try:
    fill(Client(socket_path))
    print("memory heap-redis", server.pid, flush=True)
    sys.stdin.readline()
finally:
    server.kill()
    server.wait()
