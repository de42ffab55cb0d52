"""How XLA calls a kernel: its foreign function interface (c_api.h, major version 0), and the threads it lends.

What XLA hands over is a *frame* of structures, each led by its own size and a chain of extensions. A call whose chain
begins with an extension of type 1 has no work: it asks for the version that the handler was written for.

The threads that work on one call take *units* of it from a counter, so which thread does what is left to chance, and
a unit must come out the same whoever does it. The caller is one of the threads and does not wait for a helper that has
not begun: only `%share`, which whoever leaves it last frees, must outlive the call.
"""

ARGUMENT, RESULT = 5, 6  # places of the lists of buffers in a frame
ALONE = 1 << 17  # multiplications that are not worth a second thread


def handler(name: str, load: str, units: str, work: str) -> str:
    """The text of a handler called `name`, whose unit %u is done by `@unit(ptr %job, i64 %u, i64 %next)`.

    %next is the unit that this thread does after it, if there are as many: what it reads can be asked for.

    Args:
        load: instructions that make `%job`, a structure that @unit knows, from `%frame`.
        units: the value that says how many units there are.
        work: the value that says how many multiplications all are, to leave helpers alone if those are few.
    """
    return f"""
define ptr @{name}(ptr %frame) {{
entry:
  %asked = call i1 @asked_for_version(ptr %frame)
  br i1 %asked, label %end, label %go
go:
{load}
  call void @share(ptr %frame, ptr %job, i64 {units}, i64 {work})
  br label %end
end:
  ret ptr null
}}
"""


def buffer(name: str, where: int, place: int, rank: int) -> str:
    """Instructions for %name, the data of an argument or a result, and its dimensions %name0, %name1 ..."""
    lines = [
        f"  %{name}_l = getelementptr %frame, ptr %frame, i32 0, i32 {where}, i32 4",
        f"  %{name}_a = load ptr, ptr %{name}_l",
        f"  %{name}_i = getelementptr ptr, ptr %{name}_a, i64 {place}",
        f"  %{name}_b = load ptr, ptr %{name}_i",
        f"  %{name}_p = getelementptr %buffer, ptr %{name}_b, i32 0, i32 3",
        f"  %{name} = load ptr, ptr %{name}_p",
        f"  %{name}_d = getelementptr %buffer, ptr %{name}_b, i32 0, i32 5",
        f"  %{name}_n = load ptr, ptr %{name}_d",
    ]
    for i in range(rank):
        lines += [f"  %{name}_{i} = getelementptr i64, ptr %{name}_n, i64 {i}"]
        lines += [f"  %{name}{i} = load i64, ptr %{name}_{i}"]
    return "\n".join(lines)


def rows_of(name: str, number: str, row: str, last: str) -> str:
    """Instructions for %rows, how many of result %name's rows are asked for, from the first; the rest become 0.

    Args:
        number: the argument that says it, an int32.
        row: the value that says how many numbers a row has.
        last: the value that says how many rows there are.
    """
    return "\n".join((
        f"  %asked_for = load i32, ptr %{number}", "  %wide = zext i32 %asked_for to i64",
        f"  %rows = call i64 @llvm.umin.i64(i64 %wide, i64 {last})",
        f"  %left_out = sub i64 {last}, %rows", f"  %numbers = mul i64 %left_out, {row}",
        "  %bytes = mul i64 %numbers, 4",
        f"  %begin = mul i64 %rows, {row}", f"  %from = getelementptr float, ptr %{name}, i64 %begin",
        "  call void @llvm.memset.p0.i64(ptr %from, i8 0, i64 %bytes, i1 false)",
    ))  # fmt: skip


def fields(struct: str, pointer: str, types: dict[str, str], store: bool) -> str:
    """Instructions that store values %name in a structure's fields, in their order, or load them from there."""
    lines = []
    for i, (name, kind) in enumerate(types.items()):
        lines += [f"  %{name}_f = getelementptr {struct}, ptr {pointer}, i32 0, i32 {i}"]
        lines += [f"  store {kind} %{name}, ptr %{name}_f" if store else f"  %{name} = load {kind}, ptr %{name}_f"]
    return "\n".join(lines)


SUPPORT = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @sched_yield()

%extension = type { i64, i32, ptr }
%asking = type { %extension, ptr }
%version = type { i64, ptr, i32, i32 }
%metadata = type { i64, %version, i32, i64 }
%buffer = type { i64, ptr, i32, ptr, i64, ptr }
%list = type { i64, ptr, i64, ptr, ptr }
%frame = type { i64, ptr, ptr, ptr, i32, %list, %list }
; size, extensions, version, internals, then functions: 2 destroys an error, 11 schedules a task, 12 counts threads
%api = type { i64, ptr, %version, ptr, [13 x ptr] }
%destroy = type { i64, ptr, ptr }
%count = type { i64, ptr, ptr, ptr }
%schedule = type { i64, ptr, ptr, ptr, ptr }

define internal i1 @asked_for_version(ptr %frame) {
  %pe = getelementptr %frame, ptr %frame, i32 0, i32 1
  %e = load ptr, ptr %pe
  %none = icmp eq ptr %e, null
  br i1 %none, label %no, label %some
some:
  %pt = getelementptr %extension, ptr %e, i32 0, i32 1
  %t = load i32, ptr %pt
  %is = icmp eq i32 %t, 1
  br i1 %is, label %yes, label %no
yes:
  %pm = getelementptr %asking, ptr %e, i32 0, i32 1
  %m = load ptr, ptr %pm
  %major = getelementptr %metadata, ptr %m, i32 0, i32 1, i32 2
  store i32 0, ptr %major
  %minor = getelementptr %metadata, ptr %m, i32 0, i32 1, i32 3
  store i32 3, ptr %minor
  %traits = getelementptr %metadata, ptr %m, i32 0, i32 2
  store i32 0, ptr %traits
  ret i1 true
no:
  ret i1 false
}

define internal ptr @api(ptr %frame) {
  %p = getelementptr %frame, ptr %frame, i32 0, i32 2
  %api = load ptr, ptr %p
  ret ptr %api
}
define internal ptr @context(ptr %frame) {
  %p = getelementptr %frame, ptr %frame, i32 0, i32 3
  %context = load ptr, ptr %p
  ret ptr %context
}
define internal ptr @function(ptr %frame, i64 %i) {
  %api = call ptr @api(ptr %frame)
  %p = getelementptr %api, ptr %api, i32 0, i32 4, i64 %i
  %f = load ptr, ptr %p
  ret ptr %f
}
define internal void @destroy(ptr %frame, ptr %error) {
  %args = alloca %destroy
  store %destroy { i64 24, ptr null, ptr null }, ptr %args
  %pe = getelementptr %destroy, ptr %args, i32 0, i32 2
  store ptr %error, ptr %pe
  %f = call ptr @function(ptr %frame, i64 2)
  call void %f(ptr %args)
  ret void
}

; calls one of XLA's functions with %args, whose third field is the context: whether it was done
define internal i1 @ask(ptr %frame, i64 %i, ptr %args) {
entry:
  %pc = getelementptr %count, ptr %args, i32 0, i32 2
  %context = call ptr @context(ptr %frame)
  store ptr %context, ptr %pc
  %f = call ptr @function(ptr %frame, i64 %i)
  %error = call ptr %f(ptr %args)
  %done = icmp eq ptr %error, null
  br i1 %done, label %end, label %refused
refused:
  call void @destroy(ptr %frame, ptr %error)
  br label %end
end:
  ret i1 %done
}

; threads that a call may use: one where there is no pool
define internal i64 @threads(ptr %frame) {
  %number = alloca i64
  store i64 1, ptr %number
  %args = alloca %count
  store %count { i64 32, ptr null, ptr null, ptr null }, ptr %args
  %pn = getelementptr %count, ptr %args, i32 0, i32 3
  store ptr %number, ptr %pn
  %known = call i1 @ask(ptr %frame, i64 12, ptr %args)
  %n = load i64, ptr %number
  %threads = select i1 %known, i64 %n, i64 1
  ret i64 %threads
}

; next unit, units done, threads that will still look here, units, what they are of
%share = type { i64, i64, i64, i64, ptr }

define internal void @take(ptr %s) {
entry:
  %pu = getelementptr %share, ptr %s, i32 0, i32 3
  %units = load i64, ptr %pu
  %pj = getelementptr %share, ptr %s, i32 0, i32 4
  %job = load ptr, ptr %pj
  %done = getelementptr %share, ptr %s, i32 0, i32 1
  %first = atomicrmw add ptr %s, i64 1 monotonic
  br label %look
look:
  %u = phi i64 [%first, %entry], [%next, %work]
  %some = icmp ult i64 %u, %units
  br i1 %some, label %work, label %end
work:
  %next = atomicrmw add ptr %s, i64 1 monotonic
  call void @unit(ptr %job, i64 %u, i64 %next)
  %d = atomicrmw add ptr %done, i64 1 release
  br label %look
end:
  ret void
}

define internal void @leave(ptr %s) {
  %threads = getelementptr %share, ptr %s, i32 0, i32 2
  %t = atomicrmw sub ptr %threads, i64 1 acq_rel
  %last = icmp eq i64 %t, 1
  br i1 %last, label %free, label %end
free:
  call void @free(ptr %s)
  br label %end
end:
  ret void
}

define internal void @help(ptr %s) {
  call void @take(ptr %s)
  call void @leave(ptr %s)
  ret void
}

define internal void @schedule(ptr %frame, ptr %s) {
  %args = alloca %schedule
  store %schedule { i64 40, ptr null, ptr null, ptr @help, ptr null }, ptr %args
  %pd = getelementptr %schedule, ptr %args, i32 0, i32 4
  store ptr %s, ptr %pd
  %done = call i1 @ask(ptr %frame, i64 11, ptr %args)
  br i1 %done, label %end, label %refused
refused:
  call void @leave(ptr %s)
  br label %end
end:
  ret void
}

define internal void @alone(ptr %job, i64 %units) {
entry:
  br label %look
look:
  %u = phi i64 [0, %entry], [%u1, %work]
  %some = icmp ult i64 %u, %units
  br i1 %some, label %work, label %end
work:
  %u1 = add i64 %u, 1
  call void @unit(ptr %job, i64 %u, i64 %u1)
  br label %look
end:
  ret void
}

define internal void @share(ptr %frame, ptr %job, i64 %units, i64 %work) {
entry:
  %small = icmp ult i64 %work, ALONE
  br i1 %small, label %single, label %count
count:
  %pool = call i64 @threads(ptr %frame)
  %T = call i64 @llvm.umin.i64(i64 %pool, i64 %units)
  %one = icmp ule i64 %T, 1
  br i1 %one, label %single, label %several
single:
  call void @alone(ptr %job, i64 %units)
  ret void
several:
  %s = call ptr @malloc(i64 40)
  store i64 0, ptr %s
  %done = getelementptr %share, ptr %s, i32 0, i32 1
  store i64 0, ptr %done
  %pt = getelementptr %share, ptr %s, i32 0, i32 2
  store i64 %T, ptr %pt
  %pu = getelementptr %share, ptr %s, i32 0, i32 3
  store i64 %units, ptr %pu
  %pj = getelementptr %share, ptr %s, i32 0, i32 4
  store ptr %job, ptr %pj
  br label %helpers
helpers:
  %h = phi i64 [1, %several], [%h1, %helper]
  %enough = icmp uge i64 %h, %T
  br i1 %enough, label %mine, label %helper
helper:
  call void @schedule(ptr %frame, ptr %s)
  %h1 = add i64 %h, 1
  br label %helpers
mine:
  call void @take(ptr %s)
  br label %wait
wait:
  %i = phi i64 [0, %mine], [%i1, %patient], [%i1, %yield]
  %i1 = add i64 %i, 1
  %d = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %d, %units
  br i1 %all, label %over, label %patient
patient:
  %rest = and i64 %i1, 4095
  %long = icmp eq i64 %rest, 0
  br i1 %long, label %yield, label %wait
yield:
  %y = call i32 @sched_yield()
  br label %wait
over:
  call void @leave(ptr %s)
  ret void
}
""".replace("ALONE", str(ALONE))
