# LMDB files: characters by number and by words of their names; the words of Go sources and their
# positions.
import json, os, re, struct, sys
import lmdb
folder = os.path.join(sys.argv[1], "database-lmdb")
db = lmdb.open(folder, map_size=1 << 30, max_dbs=4, lock=False)
characters, by_word, places, files = (db.open_db(name, dupsort=name in (b"by_word", b"places")) for name in
    (b"characters", b"by_word", b"places", b"files"))
with db.begin(write=True) as change, open("/usr/share/unicode/UnicodeData.txt", encoding="utf-8") as lines:
    for line in lines:
        fields = line.rstrip("\n").split(";")
        point = int(fields[0], 16)
        value = {"name": fields[1], "category": fields[2], "bidi": fields[4], "decomposed": fields[5], "upper": fields[12]}
        change.put(struct.pack(">I", point), json.dumps(value).encode(), db=characters)
        for word in fields[1].split():
            change.put(word.encode(), struct.pack(">I", point), db=by_word)
number = read = 0
for parent, folders, names in os.walk(os.path.realpath("/usr/lib/go/src")):
    folders.sort()
    with db.begin(write=True) as change:
        for name in sorted(names):
            path = os.path.join(parent, name)
            if not name.endswith(".go") or read > 6 << 20:
                continue
            content = open(path, "rb").read()
            read += len(content)
            number += 1
            change.put(struct.pack(">I", number), b"%d %d %s" % (len(content), os.stat(path).st_mtime, path.encode()), db=files)
            for line, text in enumerate(content.split(b"\n")):
                for word in re.findall(rb"\w{3,60}", text):
                    change.put(word, struct.pack(">IH", number, line & 0xffff), db=places)
db.close()
os.rename(os.path.join(folder, "data.mdb"), os.path.join(sys.argv[1], "data.mdb"))
for name in os.listdir(folder):
    os.remove(os.path.join(folder, name))
os.rename(os.path.join(sys.argv[1], "data.mdb"), os.path.join(folder, "data.mdb"))
