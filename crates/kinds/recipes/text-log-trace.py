# strace's log of ordinary commands, with times and process numbers.
import os, subprocess, sys
path = os.path.join(sys.argv[1], "text-log-trace")
commands = [
    "find /usr/share/doc -newer /etc/passwd | head -n 3000",
    "tar cf - /usr/share/perl5 /etc | gzip -1 | wc -c",
    "ls -lR /etc /usr/include/linux",
    "perl -MPOSIX -MFile::Find -e 'find(sub { stat }, \"/usr/lib/python3\")'",
    "grep -rl include /usr/include/linux",
    "dpkg --list; dpkg --search bin/perl",
    "for line in 1 2 3 4 5 6 7 8 9; do sed -n ${line}p /etc/services | cut -f 1; done",
    "/usr/bin/python3 -c 'import email, http.client, sqlite3, unittest, xml.dom.minidom'",
]
with open(path, "wb") as log:
    for command in commands:
        part = path + ".part"
        traced = subprocess.run(["strace", "-f", "-tt", "-T", "-s", "48", "-o", part, "sh", "-c", command],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not os.path.exists(part):
            sys.exit("strace fails: may this process trace others?")
        # At most 3 MiB of each: some commands make many more calls.
        log.write(open(part, "rb").read()[:3 << 20])
        os.remove(part)
