#include "unit.h"

#include "base/err.h"
#include "base/fd.h"
#include "core/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct place {
    char path[64];
    int dir;
    int pipe[2];
    struct spool s;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    snprintf(p->path, sizeof p->path, "/tmp/paddock-spool-XXXXXX");
    if (!mkdtemp(p->path))
        return -1;
    p->dir = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (pipe2(p->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    p->s = (struct spool){.dir = p->dir, .fd = -1, .max = 4u << 20, .name = "x"};
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    spool_done(&p->s);
    (void)unlinkat(p->dir, "x", 0);
    fd_done(&p->dir);
    fd_done(&p->pipe[0]);
    fd_done(&p->pipe[1]);
    rmdir(p->path);
    free(p);
    return 0;
}

static void test_empty_stream_makes_no_file(void **state)
{
    struct place *p = *state;
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), -EAGAIN);
    fd_done(&p->pipe[1]);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 0);
    assert_int_equal(faccessat(p->dir, "x", F_OK, 0), -1);
}

static void put(struct place *p, size_t len)
{
    static char bytes[SPOOL_HEAD + 1];
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(write(p->pipe[1], bytes, len), len);
}

static off_t file_size(struct place *p)
{
    struct stat st;
    return fstatat(p->dir, "x", &st, 0) < 0 ? -1 : st.st_size;
}

/* Up to SPOOL_HEAD bytes stay in memory; one more makes the file, with all of them. */
static void test_a_head_in_memory(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char out[4];
    p->s.in_memory = true;
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), -EAGAIN);
    assert_null(p->s.head);

    put(p, 10);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 10);
    put(p, SPOOL_HEAD - 10);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), SPOOL_HEAD - 10);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), -EAGAIN);
    assert_int_equal(p->s.size, SPOOL_HEAD);
    assert_int_equal(file_size(p), -1);
    assert_int_equal(spool_read(&p->s, SPOOL_HEAD - 2, out, sizeof out, &e), 2);

    put(p, 1);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 1);
    assert_null(p->s.head);
    assert_int_equal(file_size(p), SPOOL_HEAD + 1);
    assert_int_equal(spool_read(&p->s, SPOOL_HEAD - 2, out, sizeof out, &e), 3);
}

/* What is in memory goes into the file when somebody relies on it, and what comes then, too. */
static void test_a_head_is_settled(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char out[4];

    p->s.in_memory = true;
    put(p, 10);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 10);
    assert_int_equal(spool_settle(&p->s), 0);
    assert_int_equal(file_size(p), 10);

    put(p, 5);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 5);
    assert_int_equal(file_size(p), 15);
    assert_int_equal(spool_read(&p->s, 9, out, sizeof out, &e), 4);
}

/* A file that cannot be made: the head can be read on, and what comes stays in the pipe. */
static void test_a_head_that_no_file_takes(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char out[4];
    p->s.in_memory = true;
    put(p, 10);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 10);
    p->s.dir = -1;
    assert_int_equal(spool_settle(&p->s), -EBADF);
    put(p, 5);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), -EBADF);
    assert_int_equal(spool_read(&p->s, 8, out, sizeof out, &e), 2);

    p->s.dir = p->dir;
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 5);
    assert_int_equal(file_size(p), 15);
}

static void test_offsets_are_the_streams(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char out[16];
    assert_int_equal(write(p->pipe[1], "hello ", 6), 6);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 6);

    assert_int_equal(write(p->pipe[1], "world", 5), 5);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 5);
    assert_int_equal(p->s.size, 11);
    assert_int_equal(spool_read(&p->s, 6, out, sizeof out, &e), 5);
    assert_memory_equal(out, "world", 5);
    assert_int_equal(spool_read(&p->s, 11, out, sizeof out, &e), 0);
    assert_int_equal(spool_read(&p->s, 99, out, sizeof out, &e), 0);
}

static void test_it_goes_on_after_a_restart(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    assert_int_equal(write(p->pipe[1], "abc", 3), 3);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 3);
    spool_done(&p->s);

    assert_int_equal(write(p->pipe[1], "def", 3), 3);
    assert_int_equal(spool_open(&p->s, p->dir, "x", 4u << 20, &e), 0);
    assert_int_equal(p->s.size, 3);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 3);

    char out[8];
    assert_int_equal(spool_read(&p->s, 0, out, sizeof out, &e), 6);
    assert_memory_equal(out, "abcdef", 6);
}

static void test_it_is_read_at_rest_and_removed_from_there(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char out[8];
    assert_int_equal(write(p->pipe[1], "abc", 3), 3);
    assert_int_equal(spool_fill(&p->s, p->pipe[0]), 3);

    spool_rest(&p->s);
    assert_int_equal(p->s.fd, -1);
    assert_int_equal(spool_read(&p->s, 1, out, sizeof out, &e), 2);
    assert_memory_equal(out, "bc", 2);
    assert_int_equal(spool_read(&p->s, 3, out, sizeof out, &e), 0);

    spool_remove(&p->s);
    assert_int_equal(faccessat(p->dir, "x", F_OK, 0), -1);
    assert_int_equal(spool_read(&p->s, 1, out, sizeof out, &e), -1);
}

static void test_the_oldest_is_forgotten(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    char piece[32768], out[8];

    p->s.max = 2u << 20;
    for (unsigned i = 0; i < 320; i++) { /* 10 MiB */
        memset(piece, 'a' + (int)(i % 26), sizeof piece);
        assert_int_equal(write(p->pipe[1], piece, sizeof piece), sizeof piece);
        assert_int_equal(spool_fill(&p->s, p->pipe[0]), sizeof piece);
    }

    assert_int_equal(p->s.size, 10u << 20);
    assert_true(p->s.first > 0 && p->s.first <= p->s.size - p->s.max);
    assert_true(p->s.size - p->s.first <= p->s.max + (2u << 20));

    struct stat st;
    assert_int_equal(fstat(p->s.fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 < 6u << 20);
    assert_int_equal(spool_read(&p->s, 0, out, sizeof out, &e), -1);
    assert_int_equal(e.code, PD_INVALID);
    assert_int_equal(spool_read(&p->s, p->s.first, out, sizeof out, &e), sizeof out);

    uint64_t first = p->s.first;
    spool_done(&p->s);
    assert_int_equal(spool_open(&p->s, p->dir, "x", p->s.max, &e), 0);
    assert_int_equal(p->s.first, first);
}

/* Killed at any moment, over and over: every byte is there once, in order. */
static void test_a_kill_loses_and_doubles_nothing(void **state)
{
    struct place *p = *state;
    struct pd_err e;
    enum { TOTAL = 8 << 20, KILLS = 8 };
    fcntl(p->pipe[1], F_SETFL, 0);
    int killed[2]; /* a byte per kill: the writer keeps a share of the stream for after each one */
    assert_int_equal(pipe2(killed, O_CLOEXEC), 0);

    pid_t writer = child_fork();
    if (writer == 0) {
        static uint32_t words[1024];
        uint32_t n = 0;
        for (size_t done = 0; done < TOTAL; done += sizeof words) {
            char byte;
            if (done > 0 && done % (TOTAL / (KILLS + 1)) < sizeof words)
                (void)!read(killed[0], &byte, 1);
            for (unsigned i = 0; i < 1024; i++)
                words[i] = n++;
            if (fd_write_all(p->pipe[1], words, sizeof words) < 0)
                _exit(1);
        }
        _exit(0);
    }
    fd_done(&p->pipe[1]);

    int kills = 0;
    for (;;) {
        pid_t reader = child_fork();
        if (reader == 0) {
            struct spool s;
            if (spool_open(&s, p->dir, "x", 1u << 30, &e) < 0)
                _exit(1);
            for (;;) {
                ssize_t n = spool_fill(&s, p->pipe[0]);
                if (n == 0)
                    _exit(0);
                if (n < 0 && n != -EAGAIN)
                    _exit(1);
            }
        }

        /* Longer and longer: on a busy machine none of them would come to its end otherwise. */
        usleep((useconds_t)(200 + kills * 37 % 900) << (kills / 32 < 12 ? kills / 32 : 12));
        kill(reader, SIGKILL);

        int status;
        waitpid(reader, &status, 0);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        kills++;
        assert_int_equal(write(killed[1], "", 1), 1);
    }
    waitpid(writer, NULL, 0);
    close(killed[0]);
    close(killed[1]);

    assert_true(kills >= KILLS);
    assert_int_equal(spool_open(&p->s, p->dir, "x", 1u << 30, &e), 0);
    assert_int_equal(p->s.size, TOTAL);

    uint32_t words[1024], n = 0;
    for (uint64_t at = 0; at < TOTAL; at += sizeof words) {
        assert_int_equal(spool_read(&p->s, at, words, sizeof words, &e), sizeof words);
        for (unsigned i = 0; i < 1024; i++)
            assert_int_equal(words[i], n++);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_empty_stream_makes_no_file),
        T(test_a_head_in_memory),
        T(test_a_head_is_settled),
        T(test_a_head_that_no_file_takes),
        T(test_offsets_are_the_streams),
        T(test_it_goes_on_after_a_restart),
        T(test_it_is_read_at_rest_and_removed_from_there),
        T(test_the_oldest_is_forgotten),
        T(test_a_kill_loses_and_doubles_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
