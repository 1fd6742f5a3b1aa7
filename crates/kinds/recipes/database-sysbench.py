# MariaDB's table spaces, filled and modified by sysbench: rows of random digits between dashes,
# updated, deleted and reinserted.
def fill(_):
    """Lets sysbench work."""
    run = lambda what: subprocess.run(what, stdout=log, stderr=log).returncode == 0
    sysbench = ["sysbench", "--db-driver=mysql", "--mysql-socket=" + path, "--mysql-user=root", "--mysql-db=kinds", "--tables=4",
        "--table-size=40000", "--rand-seed=47", "--threads=1", "--events=20000", "--time=60", "oltp_read_write"]
    for what in (client + ["--execute=create database kinds"], sysbench + ["prepare"], sysbench + ["run"]):
        if not run(what):
            sys.exit("%s fails" % " ".join(what))


serve(fill, "--innodb-fast-shutdown=0")
keep_tables("database-sysbench")
