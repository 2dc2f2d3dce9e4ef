/* A sandbox in this very process, without a server: two commands that share their state, a file
 * written and read.
 *
 *     cc -o hello examples/c/hello.c $(pkg-config --cflags --libs paddock)
 *     ./hello
 */
#include <paddock.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Says why a call failed, and gives what main returns. */
static int failed(const char *what, const struct paddock_error *e)
{
    fprintf(stderr, "hello: %s: %s (%s)\n", what, e->message, e->code);
    return 1;
}

/* A command line for bash, to its end. One that fails is a result, not an error. */
static int run(struct paddock_sandbox *s, const char *line)
{
    struct paddock_command c = {.size = sizeof c, .command = line, .timeout_ms = 10000};
    struct paddock_result r = {.size = sizeof r};
    struct paddock_error e;
    if (paddock_exec(s, &c, &r, &e) < 0)
        return failed(line, &e);
    printf("$ %s\n%s%s", line, r.out, r.err);
    int code = r.exit_code;
    if (code != 0)
        fprintf(stderr, "hello: exit status %d%s%s\n", code, r.stopped_by[0] ? ", ended by " : "",
                r.stopped_by);
    paddock_result_done(&r);
    return code != 0;
}

static int write_and_read(struct paddock_sandbox *s)
{
    static const char text[] = "a line from outside\n";
    struct paddock_write_options o = {.size = sizeof o, .mkdirs = 1};
    struct paddock_error e;
    void *data;
    size_t len;
    uint64_t size;
    /* A relative path is below /workspace. */
    if (paddock_file_write(s, "notes/a.txt", text, strlen(text), &o, NULL, NULL, &e) < 0)
        return failed("write notes/a.txt", &e);
    if (run(s, "tr a-z A-Z < /workspace/notes/a.txt > /workspace/notes/b.txt"))
        return 1;
    if (paddock_file_read(s, "notes/b.txt", NULL, 0, UINT64_MAX, NULL, &data, &len, &size, &e) < 0)
        return failed("read notes/b.txt", &e);
    printf("notes/b.txt has %" PRIu64 " bytes: %s", size, (const char *)data);
    paddock_free(data);
    return 0;
}

static int use(struct paddock *p)
{
    struct paddock_sandbox_options o = {.size = sizeof o, .user_id = "alice", .thread_id = "hello"};
    struct paddock_error e;
    int created;
    struct paddock_sandbox *s = paddock_get_or_create(p, &o, &created, &e);
    if (!s)
        return failed("get a sandbox", &e);
    printf("a sandbox, %s\n", created ? "new" : "the one of before");
    /* The directory and what was exported hold for the next command. */
    int bad = run(s, "cd /tmp && export ANSWER=$((6 * 7)); echo $ANSWER") ||
              run(s, "echo still $ANSWER, in $PWD") || write_and_read(s);
    paddock_release(s); /* the handle; the sandbox lives on until the library is closed */
    return bad;
}

int main(void)
{
    struct paddock_error e;
    struct paddock *p = paddock_open(NULL, &e);
    if (!p)
        return failed("open the library", &e);
    int bad = use(p);
    paddock_close(p);
    return bad;
}
