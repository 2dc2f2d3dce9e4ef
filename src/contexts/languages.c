/* The table of languages. Each driver is embedded by scripts/embed (src/meson.build); the loaders
 * below read it.
 *
 * A loader must take exactly the driver's bytes from descriptor 0: what follows is the first
 * request. */
#include "contexts/languages.h"

#include "base/banned.h"

#include <ctype.h>
#include <string.h>

#define DRIVER(name)                                                                               \
    extern const char name##_driver_start[] __attribute__((visibility("hidden")));                 \
    extern const char name##_driver_end[] __attribute__((visibility("hidden")))

DRIVER(bash);
DRIVER(bridge);
DRIVER(java);
DRIVER(node);
DRIVER(python);
DRIVER(r);

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A file that is not buffered reads no further than it must. The first entry of sys.path, the
 * working directory, is taken away, so that the driver's own imports cannot find files of the
 * sandbox; the driver puts it back. Python imports before it runs the loader, too, from 3.13 on:
 * a variable that 3.11 and later know keeps the directory out. The driver removes it. */
#define PYTHON_USUAL "PYTHONSAFEPATH=paddock"
static const char python_loader[] =
    "import sys\n"
    "sys.path[:1] = filter(None, sys.path[:1])\n"
    "f = open(0, 'rb', 0, closefd=False)\n"
    "n = int(f.readline())\n"
    "s = b''\n"
    "while len(s) < n: s += f.read(n - len(s)) or sys.exit('the driver was cut off')\n"
    "exec(compile(s.split(b'\\f')[0], '<paddock>', 'exec'), {'__name__': 'paddock_driver', 'TEXT': "
    "s})\n";

/* bash reads byte by byte from what it cannot seek in. */
static const char bash_loader[] =
    "IFS= read -r n && LC_ALL=C IFS= read -r -N \"$n\" s && eval \"$s\"";

/* node, R and java cannot move descriptors: a shell puts the requests at 4, copies of 1 and 2 at 5
 * and 6, and /dev/null at 0. Where the program is missing, the shell ends with 127. */
#define MOVED "exec 4<&0 5>&1 6>&2 </dev/null; "

/* In a block: what it declares would be declared for the cells, too. */
static const char node_loader[] =
    "{ const fs = require('fs')\n"
    "const take = n => { const b = Buffer.alloc(n); let d = 0, r\n"
    "  while (d < n) { if (!(r = fs.readSync(4, b, d, n - d))) process.exit(1); d += r }\n"
    "  return b.toString() }\n"
    "let n = '', c\n"
    "while ((c = take(1)) !== '\\n') n += c\n"
    "new Function('require', 'language', take(Number(n)))(require, process.argv[1]) }\n";

/* java takes source from a file only. dd with blocks of a byte reads no further than it must. */
static const char java_loader[] = MOVED
    "command -v jshell >/dev/null && command -v java >/dev/null || exit 127\n"
    "d=$(mktemp -d) && read -r n <&4 && dd bs=1 count=\"$n\" <&4 2>/dev/null >\"$d/Driver.java\" "
    "&&\n"
    "exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 --add-opens java.base/java.io=ALL-UNNAMED "
    "\"$d/Driver.java\" \"$d/Driver.java\"\n";

/* R opens no descriptors. An interrupt of the group must not end cat. */
static const char r_loader[] =
    "requests <- pipe(\"trap '' INT; exec cat <&4 2>&- 3>&- 5>&- 6>&-\", \"r\")\n"
    "n <- as.integer(readLines(requests, 1L))\n"
    "eval(parse(text = suppressWarnings(readChar(requests, n, useBytes = TRUE)), keep.source = "
    "FALSE))\n";

static const struct context_language languages[] = {
    {
        .name = "python",
        .aliases = NAMES("py", "python3"),
        .argv = NAMES("python3", "-c", python_loader),
        .usual = PYTHON_USUAL,
        .driver = python_driver_start,
        .driver_end = python_driver_end,
        .forks = true,
        .listed = true,
        .settles = true,
        .missing = "there is no python3 in this sandbox: install the package python3 in its image",
    },
    {
        .name = "javascript",
        .aliases = NAMES("js", "node", "nodejs"),
        .argv = NAMES("sh", "-c", MOVED "exec node -e \"$0\" \"$1\"", node_loader, "javascript"),
        .driver = node_driver_start,
        .driver_end = node_driver_end,
        .settles = true,
        .listed = true,
        .missing = "there is no node in this sandbox: install the package nodejs in its image",
    },
    {
        .name = "typescript",
        .aliases = NAMES("ts"),
        .argv = NAMES("sh", "-c", MOVED "exec node -e \"$0\" \"$1\"", node_loader, "typescript"),
        .driver = node_driver_start,
        .driver_end = node_driver_end,
        .settles = true,
        .missing = "there is no TypeScript in this sandbox: install nodejs 22.13 or later, or "
                   "nodejs and the "
                   "package typescript (Debian: node-typescript) in its image",
    },
    {
        .name = "bash",
        .aliases = NAMES("sh", "shell"),
        .argv = NAMES("bash", "-c", bash_loader),
        .driver = bash_driver_start,
        .driver_end = bash_driver_end,
        .plain = true,
        .missing = "there is no bash in this sandbox: install the packages bash and coreutils in "
                   "its image",
    },
    {
        .name = "r",
        .aliases = NAMES("rlang"),
        .argv = NAMES("sh", "-c", MOVED "exec Rscript --vanilla -e \"$0\"", r_loader),
        .driver = r_driver_start,
        .driver_end = r_driver_end,
        .plain = true,
        .missing = "there is no R in this sandbox: install the package r-base-core in its image",
    },
    {
        .name = "java",
        .aliases = NAMES("jshell"),
        .argv = NAMES("sh", "-c", java_loader),
        .driver = java_driver_start,
        .driver_end = java_driver_end,
        .plain = true,
        .settles = true,
        .missing = "there is no JDK in this sandbox: install the package openjdk-17-jdk-headless, "
                   "or a later one, in its image",
    },
    {
        .name = "bridge",
        .aliases = (const char *const[]){NULL},
        .argv = NAMES("python3", "-c", python_loader),
        .usual = PYTHON_USUAL,
        .driver = bridge_driver_start,
        .driver_end = bridge_driver_end,
        .missing = "there is no driver of this language, and no jupyter_client in this sandbox for "
                   "a kernel of it: install the "
                   "packages python3-jupyter-client and the kernel in its image",
    },
};

size_t context_language_count(void)
{
    return sizeof languages / sizeof *languages;
}

const struct context_language *context_language_at(size_t i)
{
    return &languages[i];
}

static bool is_name(const char *name, const char *word, size_t n)
{
    return strlen(name) == n && strncasecmp(name, word, n) == 0;
}

const struct context_language *context_language_find(const char *name, size_t n)
{
    while (n && isspace((unsigned char)name[0])) {
        name++;
        n--;
    }
    while (n && isspace((unsigned char)name[n - 1]))
        n--;

    for (size_t i = 0; i < context_language_count(); i++) {
        const struct context_language *l = &languages[i];
        if (is_name(l->name, name, n))
            return l;
        for (const char *const *a = l->aliases; *a; a++)
            if (is_name(*a, name, n))
                return l;
    }

    return NULL;
}
