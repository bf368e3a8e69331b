# SPDX-License-Identifier: Apache-2.0
"""A pickle machine that builds a description of the objects and calls nothing.

    tree = parse(data)            # bytes -> tree

The tree: None, bool, int, float, str, bytes, tuple, list as themselves; Dict (ordered pairs: a key may be anything), Set,
Global (a name, never looked up), Obj (what a REDUCE or NEWOBJ would have made: callable, arguments, state, items, pairs),
Persist (a persistent id; torch's storages).  Shared objects stay shared, cycles stay cycles.

Cost: every opcode makes a bounded number of nodes, and no length field is believed beyond the bytes that are there, so
memory is at most a constant times len(data).  What can still explode is *walking* the result as if it were a tree (a list
that holds a list twice, forty times over): walkers must count their steps.  walk() does.
"""
import struct


class Refused(Exception):
    """What the file says is wrong, or is not taken; the sentence is the error for the user."""


def need(ok, text):
    if not ok:
        raise Refused(text)


class Global:
    __slots__ = ("module", "name")

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __repr__(self):
        return f"{self.module}.{self.name}"


class Dict:
    __slots__ = ("pairs",)

    def __init__(self, pairs=()):
        self.pairs = list(pairs)

    def get(self, key, default=None):
        """Last pair wins, as in a dict; only for keys that are str or int."""
        for k, v in reversed(self.pairs):
            if type(k) is type(key) and k == key:
                return v
        return default

    def keys(self):
        return [k for k, _ in self.pairs]


class Set:
    __slots__ = ("items", "frozen")

    def __init__(self, items=(), frozen=False):
        self.items, self.frozen = list(items), frozen


class Obj:
    """how: 'reduce' (func, args) or 'newobj' (class, args)."""
    __slots__ = ("how", "func", "args", "kwargs", "state", "has_state", "items", "pairs")

    def __init__(self, how, func, args, kwargs=None):
        self.how, self.func, self.args, self.kwargs = how, func, args, kwargs
        self.state, self.has_state, self.items, self.pairs = None, False, [], []

    def __repr__(self):
        return f"<{self.func!r}>"


class Persist:
    __slots__ = ("pid",)

    def __init__(self, pid):
        self.pid = pid


MARK = object()
LONG_MAX = 1024             # bytes of an integer
NAME_MAX = 1024             # bytes of a module's or class's name


class Machine:
    def __init__(self, data):
        self.data, self.at, self.stack, self.memo, self.ops = memoryview(data), 0, [], {}, 0

    def take(self, n):
        need(n <= len(self.data) - self.at, f"pickle: byte {self.at}: {n} bytes are announced, {len(self.data) - self.at} are there")
        at, self.at = self.at, self.at + n
        return self.data[at:self.at]

    def u(self, n):
        return int.from_bytes(self.take(n), "little")

    def line(self):
        end = bytes(self.data[self.at:self.at + NAME_MAX]).find(b"\n")
        need(end >= 0, f"pickle: byte {self.at}: a name without an end")
        text = self.take(end + 1)
        return bytes(text[:-1]).decode("utf-8", "strict")

    def pop(self):
        need(self.stack and self.stack[-1] is not MARK, f"pickle: byte {self.at}: the stack is empty")
        return self.stack.pop()

    def top(self):
        need(self.stack and self.stack[-1] is not MARK, f"pickle: byte {self.at}: the stack is empty")
        return self.stack[-1]

    def to_mark(self):
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is MARK:
                items, self.stack[i:] = self.stack[i + 1:], []
                return items
        raise Refused(f"pickle: byte {self.at}: no mark on the stack")

    def text(self, n):
        return str(self.take(n), "utf-8", "surrogatepass")

    def globl(self, module, name):
        need(isinstance(module, str) and isinstance(name, str), f"pickle: byte {self.at}: a class's name is no text")
        return Global(module, name)

    def append(self, target, items):
        if type(target) is list:
            target.extend(items)
        elif type(target) is Obj:
            target.items.extend(items)
        else:
            raise Refused(f"pickle: byte {self.at}: append to what is no list")

    def setitems(self, target, items):
        need(len(items) % 2 == 0, f"pickle: byte {self.at}: a key without a value")
        pairs = list(zip(items[::2], items[1::2]))
        if type(target) in (Dict, Obj):
            target.pairs.extend(pairs)
        else:
            raise Refused(f"pickle: byte {self.at}: items of what is no dict")

    def run(self):
        push, memo, data = self.stack.append, self.memo, self.data
        try:
            while True:
                need(self.at < len(data), f"pickle: byte {self.at}: it ends without STOP")
                op = chr(data[self.at])
                self.at += 1
                self.ops += 1
                if op == "h" and self.at < len(data) and data[self.at] in memo:      # most are one of these
                    push(memo[data[self.at]])
                    self.at += 1
                elif op == "K" and self.at < len(data):
                    push(data[self.at])
                    self.at += 1
                elif op == "(": push(MARK)
                elif op == "\x94": memo[len(memo)] = self.top()
                elif op == "r": memo[self.u(4)] = self.top()
                elif op == "j":
                    i = self.u(4)
                    need(i in memo, f"pickle: byte {self.at}: memo {i} was never set")
                    push(memo[i])
                elif op == ".":
                    value = self.pop()
                    need(not self.stack, "pickle: objects are left on the stack")
                    return value
                else:
                    self.one(op, push)
        except UnicodeDecodeError:
            raise Refused(f"pickle: byte {self.at}: text that is not UTF-8") from None

    def one(self, op, push):
        if op == "\x80":
            version = self.u(1)
            need(2 <= version <= 5, f"pickle: protocol {version}, want 2 to 5")
        elif op == "\x95":
            n = self.u(8)
            need(n <= len(self.data) - self.at, f"pickle: a frame of {n} bytes, {len(self.data) - self.at} are there")
        elif op == "N": push(None)
        elif op == "\x88": push(True)
        elif op == "\x89": push(False)
        elif op == "K": push(self.u(1))
        elif op == "M": push(self.u(2))
        elif op == "J": push(struct.unpack("<i", self.take(4))[0])
        elif op in "\x8a\x8b":
            n = self.u(1) if op == "\x8a" else self.u(4)
            need(n <= LONG_MAX, f"pickle: byte {self.at}: an integer of {n} bytes, at most {LONG_MAX}")
            push(int.from_bytes(self.take(n), "little", signed=True))
        elif op == "G": push(struct.unpack(">d", self.take(8))[0])
        elif op == "\x8c": push(self.text(self.u(1)))
        elif op == "X": push(self.text(self.u(4)))
        elif op == "\x8d": push(self.text(self.u(8)))
        elif op in "CU": push(bytes(self.take(self.u(1))))
        elif op in "BT": push(bytes(self.take(self.u(4))))
        elif op == "\x8e": push(bytes(self.take(self.u(8))))
        elif op == "\x96": push(Obj("reduce", Global("builtins", "bytearray"), (bytes(self.take(self.u(8))),)))
        elif op == "(": push(MARK)
        elif op == ")": push(())
        elif op == "]": push([])
        elif op == "}": push(Dict())
        elif op == "\x8f": push(Set())
        elif op == "t": push(tuple(self.to_mark()))
        elif op == "l": push(self.to_mark())
        elif op == "d":
            items, d = self.to_mark(), Dict()
            self.setitems(d, items)
            push(d)
        elif op == "\x85": push((self.pop(),))
        elif op == "\x86":
            b, a = self.pop(), self.pop()
            push((a, b))
        elif op == "\x87":
            c, b, a = self.pop(), self.pop(), self.pop()
            push((a, b, c))
        elif op == "\x91": push(Set(self.to_mark(), frozen=True))
        elif op == "\x90":
            items, target = self.to_mark(), self.top()
            need(type(target) is Set, f"pickle: byte {self.at}: items of what is no set")
            target.items.extend(items)
        elif op == "a":
            x = self.pop()
            self.append(self.top(), [x])
        elif op == "e":
            items = self.to_mark()
            self.append(self.top(), items)
        elif op == "s":
            v, k = self.pop(), self.pop()
            self.setitems(self.top(), [k, v])
        elif op == "u":
            items = self.to_mark()
            self.setitems(self.top(), items)
        elif op == "c":
            module = self.line()
            push(self.globl(module, self.line()))
        elif op == "\x93":
            name, module = self.pop(), self.pop()
            push(self.globl(module, name))
        elif op == "R":
            args, func = self.pop(), self.pop()
            need(type(args) is tuple, f"pickle: byte {self.at}: arguments are no tuple")
            push(Obj("reduce", func, args))
        elif op == "\x81":
            args, cls = self.pop(), self.pop()
            need(type(args) is tuple, f"pickle: byte {self.at}: arguments are no tuple")
            push(Obj("newobj", cls, args))
        elif op == "\x92":
            kwargs, args, cls = self.pop(), self.pop(), self.pop()
            need(type(args) is tuple and type(kwargs) is Dict, f"pickle: byte {self.at}: arguments are no tuple and dict")
            push(Obj("newobj", cls, args, kwargs))
        elif op == "b":
            state, target = self.pop(), self.top()
            need(type(target) is Obj and not target.has_state, f"pickle: byte {self.at}: state of what is no object")
            target.state, target.has_state = state, True
        elif op == "Q": push(Persist(self.pop()))
        elif op == "q": self.memo[self.u(1)] = self.top()
        elif op == "r": self.memo[self.u(4)] = self.top()
        elif op == "\x94": self.memo[len(self.memo)] = self.top()
        elif op in "hj":
            i = self.u(1 if op == "h" else 4)
            need(i in self.memo, f"pickle: byte {self.at}: memo {i} was never set")
            push(self.memo[i])
        elif op == "0": self.pop()
        elif op == "1": self.to_mark()
        elif op == "2": push(self.top())
        else:
            raise Refused(f"pickle: byte {self.at - 1}: opcode {op!r} is not taken")


def parse(data):
    return Machine(data).run()


def parse_prefix(data):
    """-> (tree, bytes used)."""
    m = Machine(data)
    return m.run(), m.at


# --- walking ----------------------------------------------------------------------------------------------------------

DEPTH_MAX = 256


def steps_for(data):
    """How many steps a walk may take: sharing is rare in files that were not made to exhaust their readers."""
    return 100_000 + 8 * len(data)


def segment(key):
    """One part of a name path.  A text that could be taken for a number gets a quote in front; / and ~ are escaped as in
    JSON pointers (RFC 6901)."""
    if type(key) is bool or not isinstance(key, (str, int)):
        return None
    if isinstance(key, int):
        return str(key)
    text = key.replace("~", "~0").replace("/", "~1")
    return "'" + text if text[:1] in ("'", "@", "#") or text.lstrip("-").isdigit() or not text else text


def walk(root, visit, steps):
    """Calls visit(path, node) for every node that is reached through dicts, lists and tuples, and the state, arguments,
    items and pairs of objects; an answer other than None ends the descent there.  Iterative, counted; a cycle is refused."""
    stack, seen, left = [("", root, 0)], [], steps
    open_ = set()
    while stack:
        path, node, depth = stack.pop()
        if path is None:
            open_.discard(node)
            continue
        left -= 1
        need(left >= 0, f"pickle: more than {steps} steps to walk: a file made to exhaust its readers")
        need(depth <= DEPTH_MAX, f"pickle: more than {DEPTH_MAX} levels deep at '{path[:80]}'")
        if visit(path, node) is not None:
            continue
        below = children(node)
        if below:
            need(id(node) not in open_, f"pickle: '{path[:80]}' holds itself")
            open_.add(id(node))
            stack.append((None, id(node), 0))
            for name, child in reversed(below):
                stack.append((f"{path}/{name}" if path else name, child, depth + 1))


def children(node):
    """[(segment, child)]; keys that are no text or number are numbered, with a hash sign."""
    named = lambda k, i: segment(k) if segment(k) is not None else f"#{i}"
    t = type(node)
    if t is Dict:
        return [(named(k, i), v) for i, (k, v) in enumerate(node.pairs)]
    if t in (list, tuple):
        return [(str(i), v) for i, v in enumerate(node)]
    if t is Obj:
        out = [(named(k, i), v) for i, (k, v) in enumerate(node.pairs)]
        out += [(str(i), v) for i, v in enumerate(node.items)]
        if not is_ordered_dict(node):
            out += [(f"@{i}", v) for i, v in enumerate(node.args)]
        if node.has_state:
            out.append(("@state", node.state))
        return out
    return []


def is_global(x, module, name):
    return type(x) is Global and x.name == name and {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(x.module, x.module) == module


def is_ordered_dict(node):
    return type(node) is Obj and is_global(node.func, "collections", "OrderedDict")
