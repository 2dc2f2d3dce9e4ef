/* How libpaddock ends: with its process, however that ends; and what a forked child has of it. And
 * its files. */
#include "lib_place.h"

#include <paddock.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char why_not[400];

static int group_setup(void **state)
{
    struct paddock_error e;
    (void)state;

    if (program_choose() < 0)
        return -1;
    struct paddock *p = paddock_open(NULL, &e);
    if (!p) {
        print_message("# paddock_open: %s: %s\n", e.code, e.message);
        return -1;
    }
    int tried = sandboxes_try(p, why_not, sizeof why_not);
    paddock_close(p);
    return tried;
}

#define need_sandboxes()                                                                           \
    do {                                                                                           \
        if (why_not[0])                                                                            \
            skip_because("%s", why_not);                                                           \
    } while (0)

/* Processes that sleep so long; they are in a jail, but this is the host. */
static int count_processes(const char *word)
{
    DIR *d = opendir("/proc");
    int count = 0;
    char line[64]; /* others have numbers in their command lines as well */
    snprintf(line, sizeof line, "/bin/sleep %s ", word);
    assert_non_null(d);

    for (struct dirent *at; (at = readdir(d));) {
        char path[300], text[4096];
        snprintf(path, sizeof path, "/proc/%s/cmdline", at->d_name);
        int fd =
            at->d_name[0] >= '0' && at->d_name[0] <= '9' ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
        if (fd >= 0)
            close(fd);
        for (ssize_t i = 0; i < n; i++)
            if (!text[i])
                text[i] = ' ';
        text[n > 0 ? n : 0] = 0;
        count += !strcmp(text, line);
    }

    closedir(d);
    return count;
}

static bool wait_for_count(const char *word, int count)
{
    for (int n = 0; n < 1200; n++) {
        if (count_processes(word) == count)
            return true;
        usleep(50000);
    }
    return false;
}

static bool wait_for_none(const char *word)
{
    return wait_for_count(word, 0);
}

static int is_there(pid_t pid)
{
    return kill(pid, 0) == 0;
}

static int wait_until_gone(pid_t pid)
{
    for (int n = 0; n < 1200 && is_there(pid); n++)
        usleep(50000);
    return !is_there(pid);
}

/* A host that has a sandbox with a command in it, tells of it, and waits. */
struct host {
    pid_t pid, keeper;
    pid_t child; /* that it forked, or 0 */
    char word[32];
    char spool[300]; /* where its output is kept */
};

static void find_spool(pid_t pid, char out[300])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    out[0] = 0;
    assert_non_null(d);

    for (struct dirent *at; (at = readdir(d));) {
        char target[300];
        ssize_t n = readlinkat(dirfd(d), at->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        char *end = strstr(target, "/spool");
        if (strstr(target, "/paddock-") && end && !end[6]) {
            *end = 0;
            snprintf(out, 300, "%s", target);
        }
    }
    closedir(d);
}

static void start_host(struct host *h, int forks)
{
    int p[2];
    static unsigned serial;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    snprintf(h->word, sizeof h->word, "%u", 700000u + (unsigned)getpid() % 100000u + serial++);
    h->pid = child_fork();

    if (h->pid == 0) {
        struct paddock_error e;
        struct paddock *lib = paddock_open(NULL, &e);
        struct paddock_sandbox *s = lib ? paddock_create(lib, NULL, &e) : NULL;
        const char *const argv[] = {"/bin/sleep", h->word, NULL};
        struct paddock_command c = {.size = sizeof c, .argv = argv};
        struct paddock_info i = {.size = sizeof i};
        if (!s || !paddock_start(s, &c, &e) || paddock_get_info(lib, &i, &e) < 0)
            _exit(3);

        /* A child that knows nothing of the library must not keep it alive. */
        pid_t told[2] = {i.keeper_pid, forks ? fork() : 0};
        if (forks && told[1] == 0) {
            close(STDOUT_FILENO); /* the test's, which it may outlive */
            close(STDERR_FILENO);
            for (alarm(300);;)
                pause();
        }

        if (write(p[1], told, sizeof told) != sizeof told)
            _exit(4);
        for (;;)
            pause();
    }
    close(p[1]);

    pid_t told[2];
    ssize_t n = read(p[0], told, sizeof told);
    close(p[0]);
    assert_int_equal(n, sizeof told);

    h->keeper = told[0];
    h->child = told[1];
    find_spool(h->pid, h->spool);

    /* The control: all of it is there. A command that was started becomes itself a little later. */
    assert_true(wait_for_count(h->word, 1));
    assert_true(is_there(h->keeper));
    assert_int_equal(access(h->spool, F_OK), 0);
}

static void test_nothing_outlives_a_host_that_is_killed(void **state)
{
    (void)state;
    struct host h;
    need_sandboxes();
    start_host(&h, 0);
    kill(h.pid, SIGKILL);
    assert_int_equal(waitpid(h.pid, NULL, 0), h.pid);
    assert_true(wait_for_none(h.word));
    assert_true(wait_until_gone(h.keeper));

    /* Its directory is removed by whoever opens the library next. */
    struct paddock *next = paddock_open(NULL, NULL);
    assert_non_null(next);
    assert_int_equal(access(h.spool, F_OK), -1);
    paddock_close(next);
}

static void test_a_forked_child_does_not_keep_it_alive(void **state)
{
    (void)state;
    struct host h;
    need_sandboxes();
    start_host(&h, 1);
    kill(h.pid, SIGKILL);
    assert_int_equal(waitpid(h.pid, NULL, 0), h.pid);
    int none = wait_for_none(h.word), gone = wait_until_gone(h.keeper);
    int was_there = kill(h.child, SIGKILL) == 0; /* or the test would prove nothing */
    assert_true(none);
    assert_true(gone);
    assert_true(was_there);
}

static void test_a_forked_child_is_told_to_open_it_again(void **state)
{
    (void)state;
    int status;
    need_sandboxes();

    struct paddock *lib = paddock_open(NULL, NULL);
    assert_non_null(lib);
    struct paddock_sandbox *s = paddock_create(lib, NULL, NULL);
    assert_non_null(s);

    pid_t pid = child_fork();
    if (pid == 0) {
        struct paddock_error e;
        struct paddock_command c = {.size = sizeof c, .command = "true"};
        struct paddock_result r = {.size = sizeof r};
        int good = paddock_exec(s, &c, &r, &e) == -1 && !strcmp(e.code, "unsupported") &&
                   paddock_create(lib, NULL, &e) == NULL && strstr(e.message, "again");
        paddock_release(s);
        paddock_close(lib);

        struct paddock *own = paddock_open(NULL, &e);
        struct paddock_sandbox *mine = own ? paddock_create(own, NULL, &e) : NULL;
        good = good && mine && paddock_exec(mine, &c, &r, &e) == 0;
        paddock_result_done(&r);

        paddock_release(mine);
        paddock_close(own);
        _exit(good ? 0 : 1);
    }

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);

    /* And it has taken nothing away. */
    struct paddock_command c = {.size = sizeof c, .command = "echo here"};
    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, &c, &r, NULL), 0);
    assert_string_equal(r.out, "here\n");
    paddock_result_done(&r);
    paddock_release(s);
    paddock_close(lib);
}

static void test_handles_outlive_the_library(void **state)
{
    (void)state;
    struct paddock_error e;
    need_sandboxes();

    struct paddock *lib = paddock_open(NULL, NULL);
    struct paddock_sandbox *s = paddock_create(lib, NULL, NULL);
    struct paddock_info i = {.size = sizeof i};
    assert_int_equal(paddock_get_info(lib, &i, NULL), 0);
    paddock_close(lib);
    assert_false(is_there(i.keeper_pid));

    struct paddock_command c = {.size = sizeof c, .command = "true"};
    struct paddock_result r = {.size = sizeof r};
    assert_int_equal(paddock_exec(s, &c, &r, &e), -1);
    assert_string_equal(e.code, "shutting_down");
    paddock_release(s);
}

/* ---- files ---- */

static int note_entry(void *arg, const struct paddock_entry *entry)
{
    char *text = arg;
    size_t len = strlen(text);
    snprintf(text + len, 512 - len, "%s %s %llu;", entry->type, entry->path,
             (unsigned long long)entry->size);
    return 0;
}

static int note_match(void *arg, const struct paddock_match *m)
{
    char *text = arg;
    size_t len = strlen(text);
    snprintf(text + len, 512 - len, "%s:%llu:%s;", m->path, (unsigned long long)m->line, m->text);
    return 0;
}

static int note_replaced(void *arg, const char *path, uint64_t count)
{
    snprintf(arg, 512, "%s %llu", path, (unsigned long long)count);
    return 0;
}

static void test_files(void **state)
{
    (void)state;
    struct paddock_error e;
    char text[512] = "";
    void *data;
    size_t len;
    uint64_t size;

    need_sandboxes();
    struct paddock *lib = paddock_open(NULL, NULL);
    struct paddock_sandbox *s = paddock_create(lib, NULL, NULL);
    assert_non_null(s);

    struct paddock_write_options o = {.size = sizeof o, .mkdirs = 1, .mode = 0600};
    assert_int_equal(paddock_file_write(s, "d/a.txt", "one\ntwo\n", 8, &o, note_entry, text, &e),
                     0);
    assert_string_equal(text, "file /workspace/d/a.txt 8;");
    assert_int_equal(
        paddock_file_read(s, "d/a.txt", NULL, 4, UINT64_MAX, NULL, &data, &len, &size, &e), 0);
    assert_string_equal(data, "two\n");
    assert_int_equal(size, 8);
    paddock_free(data);
    assert_int_equal(paddock_file_read(s, "d/none", NULL, 0, 1, NULL, &data, &len, NULL, &e), -1);
    assert_string_equal(e.code, "not_found");

    /* In pieces, more than a pipe holds; given up, it leaves nothing. */
    struct paddock_writer *w = paddock_writer_open(s, "big", NULL, &e);
    static char piece[100000];
    assert_non_null(w);
    for (int i = 0; i < 20; i++)
        assert_int_equal(paddock_writer_write(w, piece, sizeof piece, &e), 0);

    text[0] = 0;
    assert_int_equal(paddock_writer_finish(w, 1, note_entry, text, &e), 0);
    assert_string_equal(text, "file /workspace/big 2000000;");

    w = paddock_writer_open(s, "other", NULL, &e);
    assert_int_equal(paddock_writer_write(w, piece, 10, &e), 0);
    assert_int_equal(paddock_writer_finish(w, 0, NULL, NULL, &e), 0);
    assert_int_equal(paddock_file_stat(s, "other", NULL, NULL, NULL, &e), -1);
    assert_int_equal(paddock_file_read(s, "big", NULL, 0, UINT64_MAX, NULL, &data, &len, NULL, &e),
                     0);
    assert_int_equal(len, 2000000);
    paddock_free(data);
    assert_int_equal(paddock_file_remove(s, "big", NULL, 0, NULL, &e), 0);

    /* Names. */
    assert_int_equal(paddock_file_mkdir(s, "d/e/f", NULL, 1, 0, NULL, NULL, &e), 0);
    assert_int_equal(paddock_file_copy(s, "d/a.txt", "d/e/b.txt", NULL, 0, NULL, NULL, NULL, &e),
                     0);
    assert_int_equal(paddock_file_move(s, "d/e/b.txt", "d/c.txt", NULL, 0, NULL, NULL, &e), 0);

    text[0] = 0;
    assert_int_equal(paddock_file_list(s, "d", NULL, 1, NULL, note_entry, text, &e), 0);
    assert_non_null(strstr(text, "file /workspace/d/a.txt 8;file /workspace/d/c.txt 8;dir"));

    text[0] = 0;
    struct paddock_search q = {.size = sizeof q, .pattern = "TWO", .ignore_case = 1, .path = "d"};
    int more = 9;
    assert_int_equal(paddock_file_search(s, &q, note_match, text, &more, &e), 0);
    assert_string_equal(text, "/workspace/d/a.txt:2:two;/workspace/d/c.txt:2:two;");
    assert_int_equal(more, 0);

    q = (struct paddock_search){
        .size = sizeof q, .pattern = "two", .replacement = "three", .glob = "c.txt", .path = "d"};
    assert_int_equal(paddock_file_replace(s, &q, note_replaced, text, &e), 0);
    assert_string_equal(text, "/workspace/d/c.txt 1");
    assert_int_equal(paddock_file_remove(s, "d", NULL, 0, NULL, &e), -1);
    assert_int_equal(paddock_file_remove(s, "d", NULL, 1, NULL, &e), 0);
    paddock_release(s);
    paddock_close(lib);
}

static int find_port(void *arg, unsigned port, const char *address, int pid, const char *command)
{
    (void)address, (void)pid, (void)command;
    *(int *)arg |= port == 8123;
    return 0;
}

static void test_a_port_is_reached(void **state)
{
    (void)state;
    struct paddock_error e;
    char text[64] = "";
    int found = 0, sock = -1;
    need_sandboxes();

    struct paddock *lib = paddock_open(NULL, NULL);
    struct paddock_sandbox *s = paddock_create(lib, NULL, NULL);
    assert_non_null(s);
    assert_int_equal(paddock_dial(s, 8123, &e), -1);
    assert_string_equal(e.code, "bad_gateway");

    const char *const argv[] = {
        "/usr/bin/python3", "-c",
        "import socket\ns = socket.create_server(('127.0.0.1', 8123))\nc = s.accept()[0]\n"
        "c.sendall(c.recv(9).upper())\nc.shutdown(1)\nprint(len(c.recv(9)))",
        NULL};

    struct paddock_command c = {.size = sizeof c, .argv = argv};
    struct paddock_process *p = paddock_start(s, &c, &e);
    if (!p && access(argv[0], X_OK) < 0)
        skip_because("no python3 in the sandbox: %s", e.message);
    assert_non_null(p);

    for (int n = 0; n < 3000 && !found; n++) {
        assert_int_equal(paddock_each_port(s, find_port, &found, &e), 0);
        usleep(20000);
    }

    assert_true(found);
    assert_true((sock = paddock_dial(s, 8123, &e)) >= 0);
    assert_int_equal(send(sock, "hello", 5, 0), 5);
    assert_int_equal(recv(sock, text, sizeof text, MSG_WAITALL), 5);
    assert_string_equal(text, "HELLO");

    shutdown(sock, SHUT_WR);
    assert_int_equal(paddock_process_wait(p, UINT64_MAX, UINT64_MAX, 60000, NULL, NULL), 1);
    close(sock);
    paddock_process_release(p);
    paddock_release(s);
    paddock_close(lib);
}

/* In builds with tests the variable takes capabilities from the provider. */
static void test_a_provider_that_cannot(void **state)
{
    (void)state;
    struct paddock_error e = {0};
    need_sandboxes();
    setenv("PADDOCK_PROVIDER_CANNOT", "pause,background,files", 1);
    struct paddock *lib = paddock_open(NULL, &e);
    unsetenv("PADDOCK_PROVIDER_CANNOT");
    assert_non_null(lib);
    struct paddock_sandbox *s = paddock_create(lib, NULL, &e);
    assert_non_null(s);

    assert_int_equal(paddock_pause(s, &e), -1);
    assert_string_equal(e.code, "unsupported");
    assert_non_null(strstr(e.message, "provider jail cannot freeze"));

    struct paddock_command c = {.size = sizeof c, .command = "true"};
    assert_null(paddock_start(s, &c, &e));
    assert_string_equal(e.code, "unsupported");
    assert_non_null(strstr(e.message, "in the background"));

    void *data;
    size_t len;
    assert_int_equal(paddock_file_read(s, "a", NULL, 0, 1, NULL, &data, &len, NULL, &e), -1);
    assert_string_equal(e.code, "unsupported");
    assert_non_null(strstr(e.message, "provider jail cannot read or write files"));

    paddock_end(s, 0, NULL);
    paddock_release(s);
    paddock_close(lib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_outlives_a_host_that_is_killed),
        cmocka_unit_test(test_a_forked_child_does_not_keep_it_alive),
        cmocka_unit_test(test_a_forked_child_is_told_to_open_it_again),
        cmocka_unit_test(test_handles_outlive_the_library),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_a_port_is_reached),
        cmocka_unit_test(test_a_provider_that_cannot),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
