# MariaDB's table spaces and memory: entries of a dictionary, Debian's packages, events.
random.seed(31)
quote = lambda text: "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def inserts(table, rows):
    """Statements that insert rows, five hundred at a time."""
    rows = list(rows)
    for start in range(0, len(rows), 500):
        yield "insert into %s values %s;\n" % (table, ",".join("(" + ",".join(row) + ")" for row in rows[start:start + 500]))


def entries():
    dictionary = gzip.open("/usr/share/dictd/gcide.dict.dz").read().decode("utf-8", "replace")
    parts = re.split(r"\n(?=\S)", dictionary)
    for number, part in enumerate(parts[:: max(1, len(parts) // 25000)]):
        yield str(number), quote(re.split(r"[\\\[(]", part)[0].strip()[:60]), quote(part[:4000]), str(len(part))


def packages():
    for number, part in enumerate(open("/var/lib/dpkg/status", encoding="utf-8", errors="replace").read().split("\n\n")):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", part, re.M))
        if "Package" in fields:
            name, size = fields["Package"], fields.get("Installed-Size", "0")
            yield (str(number), quote(name[:80]), quote(fields.get("Version", "")[:60]), size, quote(fields.get("Section", "")[:40]),
                quote(fields.get("Depends", "")[:2000]), quote(part[part.find("Description:"):][:3000]))


def events():
    at = 1.7e9
    for number in range(90000):
        at += random.expovariate(0.3)
        detail = json.dumps({"from": "10.%d.%d.%d" % (random.randrange(4), random.randrange(256), random.randrange(256)),
            "took": round(random.lognormvariate(3, 1), 1)})
        yield (str(number), str(random.randrange(12000)), quote(random.choice(["login", "search", "order", "pay", "return"])),
            "from_unixtime(%.3f)" % at, "%.2f" % random.lognormvariate(3.5, 0.8), quote(detail) if random.random() < 0.6 else "null")


def fill(server):
    """Fills the database, whose memory is read then."""
    filling = subprocess.Popen(client, stdin=subprocess.PIPE, stdout=log, encoding="utf-8")
    put = filling.stdin.write
    put("create database kinds character set utf8mb4; use kinds;\n")
    put("create table entry(id int primary key, word varchar(60), text text, length int, key(word)) engine=innodb;\n")
    put("create table package(id int primary key, name varchar(80), version varchar(60), size bigint, section varchar(40),"
        " depends text, description text, key(name), key(section, size)) engine=innodb;\n")
    put("create table event(id bigint primary key, user int, kind varchar(20), at datetime(3), amount decimal(10,2),"
        " detail varchar(200), key(user, at), key(kind)) engine=innodb;\n")
    for table, rows in (("entry", entries()), ("package", packages()), ("event", events())):
        put("begin;\n")
        for statement in inserts(table, rows):
            put(statement)
        put("commit;\n")
    put("update event set amount = amount * 1.1 where user % 7 = 0; delete from event where user % 31 = 0;\n")
    put("select count(*) from entry where text like '%water%'; select kind, sum(amount) from event group by kind;\n")
    put("set global innodb_fast_shutdown = 0;\n")
    filling.stdin.close()
    if filling.wait() != 0:
        sys.exit("mariadbd refuses the rows")
    print("memory database-mariadb-memory", server.pid, flush=True)
    sys.stdin.readline()


serve(fill)
keep_tables("database-mariadb")
