# PostgreSQL's tables and indexes, the memory of a session with the shared buffers, and the log of
# its statements.
import csv, glob, io, json, math, os, pwd, random, shutil, subprocess, sys, time
random.seed(37)
out = sys.argv[1]
programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
if not programs:
    sys.exit("there is no PostgreSQL: install the package postgresql")
program = lambda name: os.path.join(programs[-1], name)
# PostgreSQL refuses to run as root.
root = os.getuid() == 0
account = "postgres" if root else pwd.getpwuid(os.getuid()).pw_name
folder = os.path.join(out, "data")
home = os.path.join(out, "run")
os.mkdir(home)
if root:
    os.chmod(os.path.dirname(out), 0o755)
    os.chmod(out, 0o755)
    shutil.chown(home, account)
    os.mkdir(folder)
    shutil.chown(folder, account)
as_account = ["setpriv", "--reuid=" + account, "--regid=" + account, "--clear-groups"] if root else []
log = open(os.path.join(out, "log"), "wb")
environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": home}
made = subprocess.run(as_account + [program("initdb"), "--pgdata=" + folder, "--username=kinds", "--no-sync", "--encoding=UTF8"],
    stdout=log, stderr=log, env=environment)
if made.returncode != 0:
    sys.exit("initdb fails")
statements = open(os.path.join(out, "text-log-postgres"), "wb")
server = subprocess.Popen(as_account + [program("postgres"), "-D", folder, "-k", home, "-h", "", "-c", "fsync=off", "-c", "shared_buffers=96MB",
    "-c", "log_statement=all", "-c", "log_duration=on", "-c", "log_line_prefix=%m [%p] %q%u@%d/%a ", "-c", "log_autovacuum_min_duration=0"],
    stdout=statements, stderr=statements, env=environment)
client = [program("psql"), "--host=" + home, "--username=kinds", "--dbname=postgres", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]
quote = lambda text: "'" + text.replace("'", "''") + "'"


def vendors():
    for number, row in enumerate(csv.reader(open("/usr/share/ieee-data/oui.csv", encoding="utf-8"))):
        if number > 0:
            yield [number, row[1], row[2].strip(), row[3].strip()]


def files():
    number = 0
    for parent, folders, names in os.walk("/usr/share"):
        folders.sort()
        for name in sorted(names):
            try:
                about = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            number += 1
            yield [number, parent, name, about.st_size, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(about.st_mtime)), oct(about.st_mode)]
            if number == 40000:
                return


def measurements():
    """Sensors that follow the day and drift."""
    level = [random.gauss(20, 4) for _ in range(40)]
    for step in range(2500):
        for sensor in range(40):
            level[sensor] += random.gauss(0, 0.05)
            value = level[sensor] + 5 * math.sin(step / 144 * 2 * math.pi + sensor)
            yield [sensor, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.7e9 + step * 600)), round(value, 2), random.randrange(90, 101)]


def table(name, columns, rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return "create table %s(%s);\ncopy %s from stdin csv;\n%s\\.\n" % (name, columns, name, text.getvalue())


def orders(vendors):
    for number in range(15000):
        lines = [{"article": random.choice(vendors)[2][:30], "count": random.randrange(1, 9), "price": round(random.lognormvariate(3, 1), 2)}
            for _ in range(random.randrange(1, 5))]
        yield "insert into invoice(customer, at, paid, lines) values (%d, %s, %s, %s);\n" % (random.randrange(3000),
            quote(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.71e9 + number * 61))), random.choice(["true", "false"]), quote(json.dumps(lines)))
        if number % 3 == 0:
            yield "select id, at, lines->0->>'article' from invoice where customer = %d order by at desc limit 5;\n" % random.randrange(3000)
        if number % 5 == 0:
            yield "update invoice set paid = true where id = %d;\n" % random.randrange(1, number + 2)


try:
    for _ in range(600):
        if subprocess.run(client + ["--command=select 1"], stdout=log, stderr=log, env=environment).returncode == 0:
            break
        time.sleep(0.1)
    else:
        sys.exit("postgres does not answer")
    all_vendors = list(vendors())
    session = subprocess.Popen(client + ["--tuples-only", "--no-align", "--output=" + os.path.join(out, "answers")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    put = session.stdin.write
    put(table("vendor", "id int primary key, prefix text, name text, address text", all_vendors))
    put(table("file", "id int primary key, folder text, name text, size bigint, changed timestamptz, mode text", files()))
    put(table("measurement", "sensor int, at timestamptz, value float8, quality smallint", measurements()))
    put("create index on vendor(name); create index on file(folder, name); create index on file using gin(to_tsvector('simple', name));\n")
    put("create index on measurement(sensor, at); create index on measurement using brin(at);\n")
    put("create table invoice(id serial primary key, customer int, at timestamptz, paid bool, lines jsonb);\n")
    put("create index on invoice(customer); create index on invoice using gin(lines);\n")
    for statement in orders(all_vendors):
        put(statement)
    put("analyze; select count(*), avg(value) from measurement; select count(*) from file where name like '%a%'; checkpoint;\n")
    put("select sum(length(lines::text)) from invoice; select count(*) from vendor where address ~ 'Street';\n")
    put("\\o\nselect pg_backend_pid();\n")
    session.stdin.flush()
    pid = int(session.stdout.readline())
    print("memory database-postgres-memory", pid, flush=True)
    sys.stdin.readline()
    session.stdin.close()
    session.wait()
finally:
    # 'Fast' does not wait for clients.
    server.send_signal(2)
    server.wait()
base = os.path.join(out, "database-postgres")
os.mkdir(base)
# The template databases are smaller and contain only this one's initial content.
own = max(glob.glob(os.path.join(folder, "base", "*")), key=lambda path: sum(entry.stat().st_size for entry in os.scandir(path)))
for name in sorted(os.listdir(own)):
    # The files of tables and indexes have no suffix; free space and visibility maps have one.
    if name.isdigit() and os.path.getsize(os.path.join(own, name)) > 0:
        shutil.copy(os.path.join(own, name), base)
