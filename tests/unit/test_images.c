/* The store of images under those who start from it and those who remove it at the same time. */
#include "jail/images.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/store.h"
#include "memory_place.h"
#include "wire/image_ref.h"

#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ROUNDS 1000
#define LAYERS 3

static const char name[] = "docker.io/library/race:1";

static void hex_of(char c, char out[IMAGE_HEX_LEN + 1])
{
    memset(out, c, IMAGE_HEX_LEN);
    out[IMAGE_HEX_LEN] = 0;
}

/* As an import does it, with a file in each layer. */
static void put_image(const char *state)
{
    static struct image_record r;
    struct pd_err e;
    auto_fd lock = -1;
    auto_fd images = images_open_locked(state, LOCK_SH, &lock, &e);
    assert_true(images >= 0);

    r = (struct image_record){
        .workdir = "", .user = "", .platform = "amd64", .created = "", .layer_count = LAYERS};
    hex_of('a', r.id);
    for (uint32_t i = 0; i < LAYERS; i++) {
        char place[IMAGES_PLACE_MAX];
        hex_of((char)('0' + i), r.layers[i].diff);
        if (images_has_layer(images, r.layers[i].diff))
            continue;
        auto_fd dir = images_layer_begin(images, place, &e);
        assert_true(dir >= 0);
        auto_fd tree = openat(dir, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        auto_fd mark = openat(tree, "mark", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(mark >= 0);
        assert_int_equal(images_layer_finish(images, place, r.layers[i].diff, 1000, &e), 0);
    }
    assert_int_equal(images_keep(images, &r, &e), 0);
    assert_int_equal(images_name(images, name, r.id, &e), 0);
}

static int remove_image(const char *state, struct pd_err *e)
{
    auto_fd lock = -1;
    auto_fd images = images_open_locked(state, LOCK_EX, &lock, e);
    assert_true(images >= 0);
    return images_remove(images, name, e);
}

/* As a builder does it, until the other end of the pipe is closed. The exit status: 0, or what was
 * seen that must not be. */
static int use_again_and_again(const char *state, int until)
{
    struct pd_err e;
    auto_fd host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_fd images = images_open(host, state, &e);
    unsigned used = 0;
    char c;

    fcntl(until, F_SETFL, O_NONBLOCK);
    while (read(until, &c, 1) != 0) {
        char id[IMAGE_HEX_LEN + 1];
        struct image_use use;
        if (images_resolve(images, name, id, &e) < 0 || images_use(images, id, &use, &e) < 0) {
            if (e.code != PD_NOT_FOUND && e.code != PD_CONFLICT)
                return 1;
            continue;
        }
        used++;
        for (int turn = 0; turn < 3; turn++)
            for (unsigned i = 0; i < use.tree_count; i++)
                if (use.tree_count != LAYERS || faccessat(use.trees[i], "mark", F_OK, 0) < 0)
                    return 2;
        image_use_done(&use);
    }
    return used ? 0 : 3;
}

static void test_removals_race_against_starts(void **state)
{
    const struct place *p = *state;
    struct pd_err e;
    unsigned removed = 0, refused = 0;
    int until[2];
    pid_t users[2];

    put_image(p->path);
    assert_int_equal(pipe2(until, O_CLOEXEC), 0);
    for (size_t i = 0; i < COUNT(users); i++) {
        users[i] = fork();
        if (users[i] == 0) {
            close(until[1]);
            _exit(use_again_and_again(p->path, until[0]));
        }
    }

    deadline limit = deadline_in(5 * NS_PER_S); /* less is enough on a slow machine */
    while (removed < ROUNDS && !deadline_passed(limit)) {
        if (remove_image(p->path, &e) == 0) {
            removed++;
            put_image(p->path);
        } else {
            assert_int_equal(e.code, PD_CONFLICT);
            refused++;
        }
    }
    close(until[0]);
    close(until[1]);
    for (size_t i = 0; i < COUNT(users); i++) {
        int status;
        assert_int_equal(waitpid(users[i], &status, 0), users[i]);
        assert_int_equal(status, 0);
    }
    print_message("%u removals, %u refused\n", removed, refused);
    assert_true(removed > 0);
    while (remove_image(p->path, &e) < 0)
        assert_int_equal(e.code, PD_CONFLICT);

    assert_int_equal(store_remove_tree(p->dir, "images"), 0);
}

/* --- names ---------------------------------------------------------------------------------- */

struct counting {
    const char *id;
    unsigned count;
    char last[IMAGE_TEXT_MAX];
};

static void count_name(const char *id, const char *text, void *arg)
{
    struct counting *c = arg;
    if (strcmp(id, c->id) != 0 || !text[0])
        return;
    c->count++;
    snprintf(c->last, sizeof c->last, "%s", text);
}

static struct counting count_names(int images, const char *id)
{
    struct pd_err e;
    struct counting c = {.id = id};
    assert_int_equal(images_list(images, count_name, &c, &e), 0);
    return c;
}

/* Tenants give names, as many and as long as they like. */
static void test_an_image_has_its_last_names(void **state)
{
    const struct place *p = *state;
    char id[IMAGE_HEX_LEN + 1], text[64];
    struct pd_err e;
    auto_fd lock = -1;

    put_image(p->path);
    hex_of('a', id);
    auto_fd images = images_open_locked(p->path, LOCK_SH, &lock, &e);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "docker.io/library/many:%u", i);
        assert_int_equal(images_name(images, text, id, &e), 0);
    }
    struct counting c = count_names(images, id);
    assert_int_equal(c.count, 64);
    assert_string_equal(c.last, "docker.io/library/many:99");
    assert_int_equal(images_find(images, "many:36", id, &e), 0);
    assert_int_equal(images_find(images, "many:35", id, &e), -1);
    assert_int_equal(e.code, PD_NOT_FOUND);

    /* The same name again is none more. */
    assert_int_equal(images_name(images, "many:50", id, &e), 0);
    assert_int_equal(images_find(images, "many:36", id, &e), 0);
    assert_int_equal(store_remove_tree(p->dir, "images"), 0);
}

static void test_no_names_keep_others_from_theirs(void **state)
{
    const struct place *p = *state;
    char id[IMAGE_HEX_LEN + 1], other[IMAGE_HEX_LEN + 1];
    struct pd_err e;
    auto_fd lock = -1;
    static const size_t sizes[] = {(4 << 20) - 65536 - 400, (4 << 20) - 65536 - 100,
                                   (4 << 20) - 65536}; /* all that is read */

    hex_of('a', id);
    hex_of('b', other);
    for (size_t at = 0; at < COUNT(sizes); at++) {
        put_image(p->path);
        auto_fd images = images_open_locked(p->path, LOCK_SH, &lock, &e);
        auto_fd file = openat(images, "names", O_WRONLY | O_TRUNC | O_CLOEXEC);
        static char names[4 << 20];
        size_t len = 0;
        for (unsigned i = 0; len + 200 < sizes[at]; i++)
            len += (size_t)snprintf(names + len, sizeof names - len,
                                    "%s docker.io/library/full:%0100u\n", other, i);
        assert_int_equal(fd_write_all(file, names, len), 0);

        for (unsigned i = 0; i < 6; i++) {
            char text[64];
            snprintf(text, sizeof text, "docker.io/library/more:%u", i);
            assert_int_equal(images_name(images, text, id, &e), 0);
            assert_int_equal(images_find(images, text, id, &e), 0);
        }
        assert_int_equal(count_names(images, id).count, 6);
        assert_int_equal(store_remove_tree(p->dir, "images"), 0);
        fd_done(&lock);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_image_has_its_last_names, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_no_names_keep_others_from_theirs, make_place,
                                        remove_place),
        cmocka_unit_test_setup_teardown(test_removals_race_against_starts, make_place,
                                        remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
