# MariaDB, with its data in a folder.
import glob, gzip, json, os, random, re, shutil, subprocess, sys, time
out = sys.argv[1]
folder, path = os.path.join(out, "data"), os.path.join(out, "mariadb.sock")
log = open(os.path.join(out, "log"), "wb")
user = ["--user=root"] if os.getuid() == 0 else []
client = ["mariadb", "--no-defaults", "--socket=" + path, "--user=root"]
made = subprocess.run(["mariadb-install-db", "--no-defaults", "--datadir=" + folder, "--auth-root-authentication-method=normal",
    "--skip-test-db"] + user, stdout=log, stderr=log)
if made.returncode != 0:
    sys.exit("mariadb-install-db fails")


def serve(fill, *options):
    """Calls a function with a running server, which then ends."""
    server = subprocess.Popen(["mariadbd", "--no-defaults", "--datadir=" + folder, "--socket=" + path, "--skip-networking",
        "--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=0", *options,
        "--pid-file=" + os.path.join(out, "pid")] + user, stdout=log, stderr=log)
    try:
        for _ in range(600):
            if subprocess.run(client + ["--execute=select 1"], stdout=log, stderr=log).returncode == 0:
                break
            time.sleep(0.1)
        else:
            sys.exit("mariadbd does not answer")
        fill(server)
    finally:
        server.terminate()
        server.wait()


def keep_tables(kind):
    """Copies the table spaces of the database `kinds`."""
    os.mkdir(os.path.join(out, kind))
    for table in glob.glob(os.path.join(folder, "kinds", "*.ibd")):
        shutil.copy(table, os.path.join(out, kind))


