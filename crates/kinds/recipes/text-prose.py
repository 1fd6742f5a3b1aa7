# The text of an English dictionary, with its quotations.
import gzip, os, sys
with open(os.path.join(sys.argv[1], "text-prose"), "wb") as text:
    text.write(gzip.open("/usr/share/dictd/gcide.dict.dz").read())
