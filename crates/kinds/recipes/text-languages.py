# Manual pages in seven languages, concatenated, as troff source.
import glob, gzip, os, sys
out = os.path.join(sys.argv[1], "text-languages")
os.mkdir(out)
for language in ("de", "es", "fr", "ja", "pl", "ru", "zh_CN"):
    with open(os.path.join(out, language), "wb") as text:
        for path in sorted(glob.glob("/usr/share/man/%s/man*/*.gz" % language)):
            if not os.path.islink(path):
                text.write(gzip.open(path).read())
