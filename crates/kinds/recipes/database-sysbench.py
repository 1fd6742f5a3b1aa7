# MariaDB's table spaces, filled and modified by sysbench: rows of random digits between dashes,
# updated, deleted and reinserted.
import glob, os, shutil, subprocess, sys, time
out = sys.argv[1]
folder, path = os.path.join(out, "data"), os.path.join(out, "mariadb.sock")
log = open(os.path.join(out, "log"), "wb")
user = ["--user=root"] if os.getuid() == 0 else []
made = subprocess.run(["mariadb-install-db", "--no-defaults", "--datadir=" + folder, "--auth-root-authentication-method=normal",
    "--skip-test-db"] + user, stdout=log, stderr=log)
if made.returncode != 0:
    sys.exit("mariadb-install-db fails")
server = subprocess.Popen(["mariadbd", "--no-defaults", "--datadir=" + folder, "--socket=" + path, "--skip-networking",
    "--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=0", "--innodb-fast-shutdown=0",
    "--pid-file=" + os.path.join(out, "pid")] + user, stdout=log, stderr=log)
try:
    client = ["mariadb", "--no-defaults", "--socket=" + path, "--user=root"]
    for _ in range(600):
        if subprocess.run(client + ["--execute=create database kinds"], stdout=log, stderr=log).returncode == 0:
            break
        time.sleep(0.1)
    else:
        sys.exit("mariadbd does not answer")
    sysbench = ["sysbench", "--db-driver=mysql", "--mysql-socket=" + path, "--mysql-user=root", "--mysql-db=kinds", "--tables=4",
        "--table-size=40000", "--rand-seed=47", "--threads=1", "--events=20000", "--time=60", "oltp_read_write"]
    for work in ("prepare", "run"):
        if subprocess.run(sysbench + [work], stdout=log, stderr=log).returncode != 0:
            sys.exit("sysbench %s fails" % work)
finally:
    server.terminate()
    server.wait()
os.mkdir(os.path.join(out, "database-sysbench"))
for table in glob.glob(os.path.join(folder, "kinds", "*.ibd")):
    shutil.copy(table, os.path.join(out, "database-sysbench"))
