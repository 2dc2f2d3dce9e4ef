/* Sandboxes that wait for whoever wants one of their image: who gets one, who never does, and when
 * they go. The engine is the world of world.h, so thousands of rounds take seconds.
 *
 * PADDOCK_NIGHTLY=1 plays more rounds. */
#include "world.h"

#define PATIENCE (60 * NS_PER_S)
#define DEBIAN   "debian:12"
#define PINNED   "debian@sha256:0123456789012345678901234567890123456789012345678901234567890123"

static const char *dir_of(void **state)
{
    return ((struct place *)*state)->dir;
}

static void two_of_each(struct sessions_config *c)
{
    c->image_pool = 2;
    c->image_pool_max = 6;
    c->image_pool_ttl_ms = 3600000;
}

static void always_pulled(struct sessions_config *c)
{
    two_of_each(c);
    c->images_always_pulled = true;
}

static void in_little_room(struct sessions_config *c)
{
    two_of_each(c);
    c->max_sessions = 3;
}

static struct world *world_of_images(void)
{
    struct world *w = world_new();
    w->has_images = true;
    return w;
}

static struct session_request request_of(const char *image)
{
    struct session_request r = {
        .tenant = "acme", .spec = SPEC_DEFAULT, .queue_timeout_ms = 10000, .env = {.text = ""}};
    r.spec.image = image;
    return r;
}

static struct session *take(struct daemon *d, const struct session_request *r)
{
    struct queue_place place;
    struct session *s = NULL;
    struct pd_err e = {0};
    bool known;
    if (sessions_create(d->all, r, &s, &known, &place, &e) < 0)
        fail_msg("create: %s", e.msg);
    return s;
}

static struct session *take_image(struct daemon *d, const char *image)
{
    struct session_request r = request_of(image);
    return take(d, &r);
}

static void give_back(struct session *s)
{
    struct pd_err e = {0};
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    session_unref(s);
}

static unsigned ready(struct daemon *d)
{
    lock_take(&d->all->lock);
    unsigned count = image_pool_ready(d->all, NULL);
    lock_release(&d->all->lock);
    return count;
}

static void await_ready(struct daemon *d, unsigned count)
{
    deadline limit = deadline_in(PATIENCE);
    while (ready(d) != count && !deadline_passed(limit))
        usleep(2000);
    assert_int_equal(ready(d), count);
}

static void await_boxes(struct world *w, unsigned count)
{
    deadline limit = deadline_in(PATIENCE);
    while (box_count(w) != count && !deadline_passed(limit))
        usleep(2000);
    assert_int_equal(box_count(w), count);
}

static uint64_t dropped(struct daemon *d)
{
    struct sessions_stats stats;
    sessions_get_stats(d->all, &stats);
    return stats.pool_dropped;
}

/* Ends all, and sees that nothing is left. */
static void leave(struct daemon *d, struct world *w)
{
    sessions_end_all(d->all, "test");
    assert_int_equal(box_count(w), 0);
    assert_int_equal(root_count(w), 0);
    assert_int_equal(ready(d), 0);
    daemon_end(d);
}

/* ---- who gets one ---- */

static void test_the_next_of_an_image_is_ready(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    struct session *first = take_image(d, DEBIAN);
    assert_false(first->info.from_pool);
    await_ready(d, 2);

    struct session *s = take_image(d, DEBIAN);
    assert_true(s->info.from_pool);
    assert_string_equal(s->info.tenant, "acme");
    assert_string_equal(s->info.spec.image, DEBIAN);
    assert_int_equal(w->checks, 1);
    assert_null(s->processes); /* nothing was ever started there */
    await_ready(d, 2);
    give_back(first);
    give_back(s);
    await_boxes(w, 2);
    leave(d, w);
}

/* Everything that makes a sandbox another one. */
static void test_another_kind_is_made(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    give_back(take_image(d, DEBIAN));
    await_ready(d, 2);

    struct session_request other[5];
    for (unsigned i = 0; i < 5; i++)
        other[i] = request_of(DEBIAN);
    other[0].spec.image = "debian:13";
    other[1].spec.profile = PROFILE_DEV;
    other[2].spec.limits.memory *= 2;
    other[3].spec.network = NETWORK_HOST;
    other[4].spec.min_rung = RUNG_FULL;
    for (unsigned i = 0; i < 5; i++) {
        struct session *s = take(d, &other[i]);
        assert_false(s->info.from_pool);
        give_back(s);
    }

    /* The control: the kind that is there. */
    struct session *s = take_image(d, DEBIAN);
    assert_true(s->info.from_pool);
    give_back(s);
    leave(d, w);
}

/* Whoever has had one leaves nothing to the next: another session, another box. */
static void test_one_that_was_used_never_comes_back(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    enum { ROUNDS = 200 };
    static struct wire_id seen[ROUNDS];
    unsigned warm = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct session_request r = request_of(DEBIAN);
        if (i == ROUNDS / 2)
            await_ready(d, 2);
        r.tenant = i % 2 ? "acme" : "other";
        struct session *s = take(d, &r);
        for (unsigned k = 0; k < i; k++)
            assert_false(wire_id_equal(seen[k], s->box_id));
        seen[i] = s->box_id;
        warm += s->info.from_pool;
        assert_string_equal(s->info.tenant, r.tenant);
        give_back(s);
    }
    assert_true(warm > 0);
    leave(d, w);
}

static void test_an_image_that_changed_is_not_given_out(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    give_back(take_image(d, DEBIAN));
    await_ready(d, 2);

    w->fail_check = 1;
    struct session *s = take_image(d, DEBIAN);
    assert_false(s->info.from_pool);
    assert_true(w->checks >= 2);
    assert_true(dropped(d) >= 2);
    w->fail_check = 0;
    await_ready(d, 2);
    await_boxes(w, 3);
    give_back(s);
    leave(d, w);
}

static void test_a_tag_that_is_always_pulled_is_not_kept(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, always_pulled);
    give_back(take_image(d, DEBIAN));
    give_back(take_image(d, PINNED));
    await_ready(d, 2);
    struct session *tag = take_image(d, DEBIAN), *pinned = take_image(d, PINNED);
    assert_false(tag->info.from_pool);
    assert_true(pinned->info.from_pool);
    give_back(tag);
    give_back(pinned);
    leave(d, w);
}

/* ---- when they go ---- */

static void test_those_that_nobody_wants_go(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    give_back(take_image(d, DEBIAN));
    await_ready(d, 2);

    lock_take(&d->all->lock);
    d->all->c.image_pool_ttl_ms = 1;
    lock_release(&d->all->lock);
    await_ready(d, 0);
    assert_int_equal(dropped(d), 2);
    await_boxes(w, 0);
    leave(d, w);
}

static atomic_bool allowed = true;

static bool is_allowed(void *arg, const char *image)
{
    (void)arg;
    (void)image;
    return allowed;
}

static void by_permission(struct sessions_config *c)
{
    two_of_each(c);
    c->image_allowed = is_allowed;
}

static void test_those_that_nobody_may_have_go(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, by_permission);
    give_back(take_image(d, DEBIAN));
    await_ready(d, 2);
    allowed = false;
    await_ready(d, 0);
    await_boxes(w, 0);
    allowed = true;
    leave(d, w);
}

/* They never take the place of a sandbox that somebody asks for. */
static void test_they_give_way_to_sandboxes(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, in_little_room);
    struct session *made[3] = {take_image(d, DEBIAN)};

    await_ready(d, 2);
    made[1] = take_image(d, "debian:13");
    await_ready(d, 1);
    made[2] = take_image(d, "debian:13");
    await_ready(d, 0);
    await_boxes(w, 3);
    for (unsigned i = 0; i < 3; i++)
        give_back(made[i]);
    leave(d, w);
}

static void test_there_are_so_many_in_all(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    static const char *const images[] = {"a:1", "b:1", "c:1", "d:1", "e:1"};
    for (unsigned i = 0; i < 5; i++)
        give_back(take_image(d, images[i]));
    await_ready(d, 6);
    await_boxes(w, 6);

    /* More kinds than there are shelves. */
    for (unsigned i = 0; i < 2 * SHELVES; i++) {
        char name[16];
        snprintf(name, sizeof name, "many:%u", i);
        give_back(take_image(d, name));
    }
    await_ready(d, 6);
    leave(d, w);
}

static void test_one_that_cannot_be_made_is_left_alone(void **state)
{
    struct world *w = world_of_images();
    struct daemon *d = daemon_begin(w, dir_of(state), 1, two_of_each);
    struct session *s = take_image(d, DEBIAN);
    await_ready(d, 2);

    w->fail_create = FAIL_LATE;
    struct session *other = take_image(d, DEBIAN);
    assert_true(other->info.from_pool);
    await_ready(d, 0); /* the filler failed: the shelf is gone with what was on it */
    w->fail_create = 0;
    give_back(s);
    give_back(other);
    await_boxes(w, 0);

    give_back(take_image(d, DEBIAN));
    await_ready(d, 2);
    leave(d, w);
}

/* ---- all of it at once ---- */

struct race {
    struct daemon *d;
    struct world *w;
    atomic_bool over;
    atomic_uint taken, warm;
    unsigned rounds;
};

/* Takes and gives back, each box once in all the time: whoever gets it writes its name there. */
static void *taker_main(void *arg)
{
    struct race *race = arg;
    for (unsigned i = 0; i < race->rounds; i++) {
        struct session *s = take_image(race->d, i % 3 ? DEBIAN : "debian:13");
        atomic_fetch_add(&race->taken, 1);
        atomic_fetch_add(&race->warm, s->info.from_pool);

        lock_take(&s->lock);
        bool is_first = !s->note;
        s->note = is_first ? strdup("taken") : s->note;
        enum life life = s->life;
        lock_release(&s->lock);
        if (!is_first || (life != LIFE_RUNNING && life != LIFE_STOPPING && life != LIFE_GONE))
            abort(); /* somebody else had it */
        give_back(s);
    }
    return NULL;
}

/* Loses those that wait, and takes back the permission again and again. */
static void *spoiler_main(void *arg)
{
    struct race *race = arg;
    unsigned seed = 1;
    while (!atomic_load(&race->over)) {
        struct session *s = NULL;

        lock_take(&race->d->all->lock);
        const struct shelf *f = &race->d->all->image_pool.shelves[rand_r(&seed) % 2];
        if (f->count)
            s = session_ref(f->ready[rand_r(&seed) % f->count]);
        lock_release(&race->d->all->lock);
        if (s && rand_r(&seed) % 2)
            session_mark_lost(s, "test");
        if (s)
            session_unref(s);

        __atomic_store_n(&race->w->fail_check, rand_r(&seed) % 4 == 0, __ATOMIC_SEQ_CST);
        atomic_store(&allowed, rand_r(&seed) % 8 != 0);
        usleep(200 + (unsigned)rand_r(&seed) % 2000);
    }

    atomic_store(&allowed, true);
    return NULL;
}

static void test_takers_against_losses_and_drops(void **state)
{
    struct world *w = world_of_images();
    struct race race = {.d = daemon_begin(w, dir_of(state), 1, by_permission),
                        .w = w,
                        .rounds = getenv("PADDOCK_NIGHTLY") ? 10000 : 600};
    pthread_t takers[4], spoiler;
    w->slow_create_us = 50;

    assert_int_equal(pthread_create(&spoiler, NULL, spoiler_main, &race), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&takers[i], NULL, taker_main, &race), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(takers[i], NULL);
    atomic_store(&race.over, true);
    pthread_join(spoiler, NULL);

    assert_int_equal(race.taken, 4 * race.rounds);
    assert_true(race.warm > 0);
    leave(race.d, w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_the_next_of_an_image_is_ready),
        IN_WORLD(test_another_kind_is_made),
        IN_WORLD(test_one_that_was_used_never_comes_back),
        IN_WORLD(test_an_image_that_changed_is_not_given_out),
        IN_WORLD(test_a_tag_that_is_always_pulled_is_not_kept),
        IN_WORLD(test_those_that_nobody_wants_go),
        IN_WORLD(test_those_that_nobody_may_have_go),
        IN_WORLD(test_they_give_way_to_sandboxes),
        IN_WORLD(test_there_are_so_many_in_all),
        IN_WORLD(test_one_that_cannot_be_made_is_left_alone),
        IN_WORLD(test_takers_against_losses_and_drops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
