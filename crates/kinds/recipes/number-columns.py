# Columnar tables: uncompressed Arrow files, and Parquet files with encodings but no compression.
import csv, math, os, random, sys
import pyarrow as arrow, pyarrow.parquet as parquet
random.seed(41)
out = sys.argv[1]
vendors = list(csv.DictReader(open("/usr/share/ieee-data/oui.csv", encoding="utf-8")))
characters = [line.rstrip("\n").split(";") for line in open("/usr/share/unicode/UnicodeData.txt", encoding="utf-8")]
files = []
for parent, folders, names in os.walk("/usr/share"):
    folders.sort()
    for name in sorted(names)[:40]:
        try:
            files.append((parent, name, os.lstat(os.path.join(parent, name))))
        except OSError:
            pass
level, trips = [random.gauss(0, 1) for _ in range(50)], []
for step in range(150000):
    cab = random.randrange(50)
    level[cab] += random.gauss(0, 0.1)
    trips.append((1_700_000_000_000_000 + step * 7_000_000 + random.randrange(7_000_000), cab, 52.5 + level[cab] / 50 + random.gauss(0, 0.01),
        13.4 + math.sin(step / 900 + cab) / 10, random.choice([1, 1, 1, 2, 3]), round(4 + random.expovariate(0.1), 1), random.choice(["cash", "card", None])))
tables = {
    "vendors": arrow.table({name: [row[name] for row in vendors] for name in vendors[0]}),
    "characters": arrow.table({"point": arrow.array([int(row[0], 16) for row in characters], arrow.int32()),
        **{"field%d" % at: [row[at] for row in characters] for at in (1, 2, 3, 4, 5, 12)}}),
    "files": arrow.table({"folder": arrow.array([row[0] for row in files]).dictionary_encode(), "name": [row[1] for row in files],
        "size": [row[2].st_size for row in files], "changed": arrow.array([int(row[2].st_mtime * 1e6) for row in files], arrow.timestamp("us")),
        "mode": arrow.array([row[2].st_mode for row in files], arrow.int32())}),
    "trips": arrow.table({"at": arrow.array([row[0] for row in trips], arrow.timestamp("us")), "cab": arrow.array([row[1] for row in trips], arrow.int16()),
        "north": [row[2] for row in trips], "east": [row[3] for row in trips], "people": arrow.array([row[4] for row in trips], arrow.int8()),
        "fare": [row[5] for row in trips], "paid": arrow.array([row[6] for row in trips]).dictionary_encode()}),
}
for kind in ("number-arrow", "number-parquet"):
    os.mkdir(os.path.join(out, kind))
for name, table in tables.items():
    with arrow.OSFile(os.path.join(out, "number-arrow", name), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=20000)
    parquet.write_table(table, os.path.join(out, "number-parquet", name), compression="none", row_group_size=40000)
