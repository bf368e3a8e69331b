# SPDX-License-Identifier: Apache-2.0
"""
    history.py FILE...      reads histories of a cluster, together, and says what breaks fresh, chain, truthful or kept
    history.py --planted    breaks a history that is right, in each way, and sees that it is found

A line is an event that somebody outside of the daemons saw, fields with tabs between them, times of one clock in ns:

    open     NODE BEGIN END CONTENT         a file of the job was opened by plain path, and has this content
    command  NODE BEGIN END CONTENT RESULT  it would make a version of this content: ok, failed, or unknown (who asked died)
    commit   NODE BEGIN END CONTENT RESULT  the same, and takes what is uncommitted, on all nodes
    save     NODE BEGIN END CONTENT         a commit of this content is to come: until it has ended, the node may show it already
    write    NODE BEGIN END FILE NUMBER     the file now has this number in it, higher than any before; one writer a file
    read     NODE BEGIN END FILE NUMBER     it was read on the node that writes it
    version  NODE NR CONTENT                at the end: this node has that as version NR (.v/NR)
    kept     NODE NR FILE NUMBER            the file in that version

A content names the command that was to make it: no two commands are for the same.  (docs/cluster-protocol.md has the promises.)
"""
import collections
import sys

Event = collections.namedtuple("Event", "kind node begin end what result")


def parse(lines):
	events, versions, kept = [], [], []
	for line in lines:
		f = line.rstrip("\n").split("\t")
		if f[0] == "version":
			versions.append((f[1], int(f[2]), f[3]))
		elif f[0] == "kept":
			kept.append((f[1], int(f[2]), f[3], int(f[4])))
		else:
			events.append(Event(f[0], f[1], int(f[2]), int(f[3]), f[4], f[5] if len(f) > 5 else ""))
	return events, versions, kept


def chain_of(versions, found):
	"""The content of each version: the same on all nodes, and each another's."""
	chain, of = {}, {}
	for node, nr, content in versions:
		if chain.setdefault(nr, content) != content:
			found.append(f"chain: version {nr} is {content} on {node}, and {chain[nr]} on another node")
	for nr, content in sorted(chain.items()):
		if content in of:
			found.append(f"chain: {content} is version {of[content]} and version {nr}")
		of.setdefault(content, nr)
	for nr in range(1, max(chain, default=0) + 1):
		if nr not in chain:
			found.append(f"chain: there is no version {nr}, and a version {max(chain)}")
	return of


def check_commands(commands, of, found):
	for c in commands:
		if c.result == "ok" and c.what not in of:
			found.append(f"truthful: a command on {c.node} for {c.what} succeeded, and no version has that")
		if c.result == "failed" and c.what in of:
			found.append(f"truthful: a command on {c.node} for {c.what} failed, and version {of[c.what]} has that")
	by_number = sorted((of[c.what], c) for c in commands if c.what in of)
	for (nr, c), (later, d) in zip(by_number, by_number[1:]):
		if d.result == "ok" and d.end < c.begin:
			found.append(f"chain: version {nr} was asked for after the write(2) for version {later} had returned")
	made = {c.what for c in commands}
	for content, nr in of.items():
		if content not in made:
			found.append(f"truthful: version {nr} is {content}, which no command was for")


def uncommitted(events, commands, of):
	"""Opens that a node may answer with what was saved there, and is, or was, no version yet."""
	saved = {(e.node, e.what) for e in events if e.kind == "save"}
	ended = {c.what: c.end for c in commands}
	return {e for e in events if e.kind == "open" and (e.node, e.what) in saved and
		(e.what not in of or e.begin < ended.get(e.what, 0))}


def check_fresh(events, commands, of, found):
	asked = {c.what: c.begin for c in commands}
	events = set(events) - uncommitted(events, commands, of)
	seen = []  # (when it was seen, version, by whom)
	for e in events:
		if e.kind == "open" and e.what not in of:
			found.append(f"truthful: {e.node} showed {e.what}, which is no version")
		elif e.kind == "open":
			seen.append((e.end, of[e.what], f"an open on {e.node}"))
			if asked.get(e.what, 0) > e.end:
				found.append(f"truthful: {e.node} showed {e.what} before anybody asked for it")
	seen += [(c.end, of[c.what], f"the write(2) on {c.node}") for c in commands if c.result == "ok" and c.what in of]
	seen.sort()
	at, newest, who = 0, 0, ""
	for e in sorted((e for e in events if e.kind == "open" and e.what in of), key=lambda e: e.begin):
		while at < len(seen) and seen[at][0] < e.begin:
			if seen[at][1] > newest:
				newest, who = seen[at][1], seen[at][2]
			at += 1
		if of[e.what] < newest:
			found.append(f"fresh: an open on {e.node} that began at {e.begin} got version {of[e.what]}, after {who} "
				     f"had version {newest}")


def check_kept(events, commits, kept, of, found):
	writes = collections.defaultdict(list)
	for e in events:
		if e.kind == "write":
			writes[e.what].append((e.end, e.begin, int(e.result)))
	for w in writes.values():
		w.sort()

	def before(file, time):
		"""What the file has at least at that time."""
		return max((number for end, _, number in writes[file] if end < time), default=0)

	for e in events:
		if e.kind == "read" and int(e.result) < before(e.what, e.begin):
			found.append(f"kept: {e.node} wrote {before(e.what, e.begin)} to {e.what}, and then reads {e.result}")
	begun = {of[c.what]: c for c in commits if c.result == "ok" and c.what in of}
	for node, nr, file, number in kept:
		c = begun.get(nr)
		if c and number < before(file, c.begin):
			found.append(f"kept: version {nr}, a commit that began at {c.begin}, has {number} in {file} on {node}, where "
				     f"{before(file, c.begin)} had been written")
	newest = {}
	for node, nr, file, number in sorted(kept, key=lambda k: k[1]):
		if number < newest.get((node, file), 0):
			found.append(f"kept: version {nr} has {number} in {file}, one before it {newest[node, file]}")
		newest[node, file] = max(number, newest.get((node, file), 0))


def check(lines):
	"""Sentences, each of which begins with the name of the promise that is broken."""
	events, versions, kept = parse(lines)
	commands = [e for e in events if e.kind in ("command", "commit")]
	found = []
	of = chain_of(versions, found)
	check_commands(commands, of, found)
	check_fresh(events, commands, of, found)
	check_kept(events, [c for c in commands if c.kind == "commit"], kept, of, found)
	return found


RIGHT = """\
commit n1 0 10 a ok
open n1 11 12 a
open n2 11 13 a
write n1 14 15 x 1
read n1 16 17 x 1
command n2 20 30 b failed
save n3 28 28 c
open n3 29 30 c
commit n1 31 40 c ok
open n2 25 33 a
open n2 35 39 c
open n1 36 45 c
open n3 37 38 a
command n3 50 60 d unknown
write n1 61 62 x 2
command n2 70 80 e ok
open n1 81 82 e
version n1 1 a
version n1 2 c
version n1 3 e
version n2 3 e
kept n1 1 x 0
kept n1 2 x 1
kept n1 3 x 1
"""
# what is put in the place of a line, and what it breaks
PLANTED = [
	("open n1 81 82 e", "open n1 81 82 c", "fresh"),        # after the write(2) returned
	("open n3 37 38 a", "open n3 40 41 a", "fresh"),        # after another node showed it
	("open n2 11 13 a", "open n2 11 13 b", "truthful"),     # of a command that failed
	("open n2 35 39 c", "open n2 26 28 c", "truthful"),     # before it was asked for
	("save n3 28 28 c", "save n2 28 28 c", "truthful"),     # on a node that had not saved it
	("version n2 3 e", "version n2 3 d", "chain"),          # two nodes, two versions 3
	("version n1 2 c", "version n1 2 a", "chain"),          # one content twice
	("version n1 2 c", "", "chain"),                        # a hole
	("command n2 20 30 b failed", "command n2 20 30 e failed", "truthful"),
	("version n1 3 e", "version n1 3 f", "truthful"),       # of nobody
	("commit n1 31 40 c ok", "commit n1 81 90 c ok", "chain"),
	("read n1 16 17 x 1", "read n1 16 17 x 0", "kept"),     # its own write
	("kept n1 2 x 1", "kept n1 2 x 0", "kept"),             # written before the commit
	("kept n1 3 x 1", "kept n1 3 x 0", "kept"),             # lost by a later version
]


def plant():
	def found(text):
		return check("\t".join(line.split()) for line in text.splitlines() if line)

	if found(RIGHT):
		sys.exit(f"a right history is refused: {found(RIGHT)}")
	for line, wrong, promise in PLANTED:
		assert line in RIGHT, line
		what = found(RIGHT.replace(line + "\n", wrong + "\n"))
		if not any(w.startswith(promise + ":") for w in what):
			sys.exit(f"'{wrong}' in the place of '{line}' breaks {promise}: {what}")
	print(f"{len(PLANTED)} planted violations were found")


if __name__ == "__main__":
	if sys.argv[1:] == ["--planted"]:
		plant()
	else:
		broken = check(line for path in sys.argv[1:] for line in open(path))
		print("\n".join(broken[:20]) or "the history holds")
		sys.exit(bool(broken))
