/* Does the reader see what bash runs? Lines are made up, some of them damaged, and run by a real
 * bash whose PATH has nothing but programs that write down their name (and env, xargs, find and
 * their like). Of a line that the reader accepts, every name that was written down must have been
 * found. PADDOCK_POLICY_LINES and PADDOCK_POLICY_SEED make longer and other runs. */
#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "policy/shell_commands.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHIMS          64
#define LINE_MAX_BYTES 4000

static uint64_t random_state;

static unsigned pick(unsigned n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)((random_state >> 11) % n);
}

#define ANY(...)                                                                                   \
    ((const char *const[]){__VA_ARGS__})[pick(                                                     \
        (unsigned)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))]

/* The pieces of a line. In a template @ is a list, % a name, ~ an argument. */
static void grow(struct buf *out, const char *template, int depth);

static const char *list_template(int depth)
{
    if (depth <= 0)
        return ANY("% ~", "%");

    return ANY(
        "% ~", "% ~ ~", "@; @", "@\n@", "@ && @", "@ || @", "@ | @", "@ |& @", "@ & @", "! @",
        "time @", "(@)", "( @ ) > out", "{ @; }", "if @; then @; fi", "if @\nthen @; else @; fi",
        "while @; do @; break; done", "until ! @; do @; done", "for i in ~ ~; do @; done",
        "for i\ndo @; done", "for ((i=0;i<1;i++)); do @; done", "case ~ in a) @;; *) @;; esac",
        "case a in (a|b) @ ;& c) @\nesac", "[[ ~ == ~ ]] && @", "[[ -n ~ || ~ =~ (a|b) ]]; @",
        "(( 1 + 1 )); @", "f() { @; }; f ~", "function g { @; }; g; @", "(h() { %; }; h); @",
        "A=~ % ~", "A=1 B=2 %", "a=(~ ~); @", "a[1]=~ %", "> out % ~", "2>&1 % ~ >> out",
        "{fd}>out %", "&> out %", "% <<< ~", "% <<E\n~ $(@)\nE\n@", "% <<'E'\n$(@)\nE\n@",
        "% <<-\\E; @\n\t`@`\n\tE\n@", "% # @\n@", "env A=1 % ~", "env -u X -- %", "command % ~",
        "nohup %", "nice -n 1 %", "timeout 1 % ~", "exec % ~", "echo ~ | xargs % ~",
        "echo a | xargs -I{} % {} ~", "find . -maxdepth 0 -exec % {} \\;",
        "find . -maxdepth 0 -name '*' -exec % {} + -o -exec % \\;", "eval '% a; %'", "eval % ~",
        "bash -c '% a | %'", "sh -c \"% ; %\"", "bash -c '$(%) % `%`'", "trap '%' EXIT",
        "xargs sh -c '%; % \"$@\"' < /dev/null", "command -v %", "coproc %", "$(@) %", "~ %",
        "set -- % a; @", "@;", "@ # '", "echo ~ ~; @");
}

static const char *argument_template(int depth)
{
    if (depth <= 0)
        return ANY("a", "'q q'", "\"d $x\"", "$'a\\'b'", "a#b", "#", "{a,b}", "*", "if", "}", "$x",
                   "\\;", "''", "[a]", "~", "%", "then", "\"'\"", "'\"'", "\\'", "$#", "=");
    return ANY("$(@)", "\"$(@)\"", "`@`", "\"`@`\"", "<(@)", "${x:-$(@)}", "\"${x:-`@`}\"",
               "$((1 + $(@)))", "\"a $(@) ${y#'b'}\"", "a$(@)b", "$( (@) )", "'$(@)'", "\"\\$(@)\"",
               "${x#\"$(@)\"}", "~~", "\"$(@ \"~\")\"", "${x:-~}", ">(@)");
}

static void put_name(struct buf *out)
{
    unsigned n = pick(SHIMS);
    const char *form = ANY("c?", "c?", "c?", "'c?'", "c\\?", "\"c?\"", "$'c?'", "c\"\"?", "c\\\n?",
                           "./../bin/c?", "\\c?");
    for (; *form; form++)
        if (*form == '?')
            buf_printf(out, "%u", n);
        else
            buf_putc(out, *form);
}

static void grow(struct buf *out, const char *template, int depth)
{
    for (const char *p = template; *p && out->len < LINE_MAX_BYTES; p++) {
        if (*p == '@')
            grow(out, list_template(depth - 1), depth - 1);
        else if (*p == '~')
            grow(out, argument_template(depth - 1), depth - 1);
        else if (*p == '%')
            put_name(out);
        else
            buf_putc(out, *p);
    }
}

/* Takes out, puts in or replaces single characters that mean something. */
static void damage(struct buf *line)
{
    static const char letters[] = "'\"`$(){}[]\\#;&|<>\n !=~*?a";

    for (unsigned n = 1 + pick(3); n > 0 && line->len > 1; n--) {
        size_t at = pick((unsigned)line->len);
        char c = letters[pick(sizeof letters - 1)];
        switch (pick(3)) {
        case 0:
            line->data[at] = (uint8_t)c;
            break;
        case 1:
            memmove(line->data + at, line->data + at + 1, line->len - at - 1);
            line->len--;
            break;

        default:
            if (buf_putc(line, c) == 0) {
                memmove(line->data + at + 1, line->data + at, line->len - 1 - at);
                line->data[at] = (uint8_t)c;
            }
        }
    }
}

struct place {
    char top[64], bin[80], work[80], log[80];
};

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void make_place(struct place *p)
{
    static const char *const real[] = {"env",  "xargs",   "find", "nohup",
                                       "nice", "timeout", "sh",   "bash"};
    snprintf(p->top, sizeof p->top, "/tmp/paddock-policy-XXXXXX");
    assert_non_null(mkdtemp(p->top));
    snprintf(p->bin, sizeof p->bin, "%s/bin", p->top);
    snprintf(p->work, sizeof p->work, "%s/work", p->top);
    assert_int_equal(mkdir(p->bin, 0755) | mkdir(p->work, 0755), 0);

    for (unsigned i = 0; i < SHIMS; i++) {
        char path[128], text[160];
        snprintf(path, sizeof path, "%s/c%u", p->bin, i);
        snprintf(text, sizeof text, "#!/bin/sh\necho c%u >> \"$LOG\"\nexit %u\n", i, i % 3 == 2);
        write_file(path, text, 0755);
    }

    for (size_t i = 0; i < COUNT(real); i++) {
        char path[128], target[64];
        snprintf(target, sizeof target, "/usr/bin/%s", real[i]);
        if (access(target, X_OK) != 0)
            snprintf(target, sizeof target, "/bin/%s", real[i]);
        snprintf(path, sizeof path, "%s/%s", p->bin, real[i]);
        assert_int_equal(symlink(target, path), 0);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

/* Runs the line for half a second at most, and ends whatever it has started. */
static void run_bash(const struct place *p, const char *line)
{
    char path[100], log[100];
    snprintf(path, sizeof path, "PATH=%s", p->bin);
    snprintf(log, sizeof log, "LOG=%s", p->log);

    pid_t pid = child_fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        if (setpgid(0, 0) < 0 || chdir(p->work) < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 ||
            dup2(null, 2) < 0)
            _exit(1);
        execle("/bin/bash", "bash", "-c", line, NULL,
               (char *[]){path, log, "FUNCNEST=4", "LC_ALL=C.UTF-8", NULL});
        _exit(1);
    }
    assert_true(pid > 0);
    (void)setpgid(pid, pid);

    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    (void)poll(&end, pidfd >= 0, 500);
    close(pidfd);
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* A file that is read as a script is found as `.`, `sh` or `bash`, and what is in it is nobody's
 * promise: such lines are left out. */
static int note(void *ctx, const struct found *f, struct pd_err *e)
{
    const char *slash = strrchr(f->name, '/');
    if (f->kind == FOUND_COMMAND &&
        (!strcmp(f->name, ".") || !strcmp(f->name, "sh") || !strcmp(f->name, "bash")))
        return pd_fail(e, PD_POLICY, "reads a file");
    return buf_printf(ctx, " %s ", slash ? slash + 1 : f->name);
}

static unsigned count_runs(const struct place *p, const char *line, const char *found)
{
    unsigned runs = 0;
    char name[32];
    FILE *log = fopen(p->log, "re");

    while (log && fgets(name, sizeof name, log)) {
        char padded[40];
        name[strcspn(name, "\n")] = 0;
        snprintf(padded, sizeof padded, " %s ", name);
        if (!strstr(found, padded))
            fail_msg("bash ran %s, which was not found (found:%s) in:\n%s", name, found, line);
        runs++;
    }

    if (log)
        fclose(log);
    unlink(p->log);
    return runs;
}

static unsigned setting(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static void test_everything_that_bash_runs_was_found(void **state)
{
    struct place p;
    unsigned lines = setting("PADDOCK_POLICY_LINES", 300), accepted = 0, runs = 0;
    (void)state;
    if (access("/bin/bash", X_OK) != 0)
        skip_because("there is no /bin/bash");
    make_place(&p);

    for (unsigned i = 0; accepted < lines && i < lines * 20; i++) {
        auto_buf line = BUF_INIT(2 * LINE_MAX_BYTES), found = BUF_INIT(1 << 16);
        struct pd_err e = {.msg = ""};

        random_state =
            (setting("PADDOCK_POLICY_SEED", 1) * 1000003ULL + i + 1) * 0x9e3779b97f4a7c15;
        for (int j = 0; j < 8; j++)
            pick(2);
        grow(&line, "@", 2 + (int)pick(3));
        if (pick(2))
            damage(&line);
        const char *text = buf_cstr(&line);
        if (line.len > LINE_MAX_BYTES || shell_commands(text, note, &found, &e) < 0)
            continue;
        accepted++;

        /* A log of its own: timeout leaves its group, and may live on. */
        snprintf(p.log, sizeof p.log, "%s/log%u", p.top, accepted);
        run_bash(&p, text);
        runs += count_runs(&p, text, found.len ? buf_cstr(&found) : "");
    }

    print_message("# %u lines accepted, %u commands run\n", accepted, runs);
    nftw(p.top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(accepted, lines);
    assert_true(runs > lines / 2); /* or the shims do not work */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_that_bash_runs_was_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
