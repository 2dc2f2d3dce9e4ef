/* Reading an execution from its driver's streams: an event is told after the text before it, also
 * where each stream comes in its own time. */
#include "stage.h"

#include "core/context_reader.h"

struct driven {
    struct session *session;
    struct process *process;
    struct context_reader *reader;
    const int *ends; /* what the driver writes to: stdout, stderr, events */
};

static int setup(void **state)
{
    return stage_begin(state, NULL);
}

/* A driver that has begun execution `x`. `late`: it is on another machine. */
static struct driven drive(struct stage *g, bool late)
{
    static const uint64_t start[STREAM_ALL];
    struct pd_err e = {0};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct driven d = {.session = session_make(g, "acme", 0),
                       .reader = calloc(1, sizeof *d.reader)};
    bool known;
    assert_int_equal(msg_list_add(&argv, "driver"), 0);

    struct process_request r = {
        .argv = msg_list_of(&argv), .env = {.text = ""}, .driver = true, .back_pressure = true};
    if (session_start(d.session, &r, &d.process, &known, &e) < 0)
        fail_msg("start: %s", e.msg);
    msg_list_writer_done(&argv);

    struct played_init *i = init_of(g, d.session);
    for (deadline t = deadline_in(PATIENCE); atomic_load(&i->kept) < 0; usleep(200))
        assert_false(deadline_passed(t));
    d.ends = i->kept_all;

    assert_non_null(d.reader);
    reader_init(d.reader, d.process, "x", start, true);
    d.reader->is_late = late;
    return d;
}

static void driven_end(struct driven *d)
{
    reader_done(d->reader);
    free(d->reader);
    process_unref(d->process);
    session_unref(d->session);
}

/* The driver writes to a stream; waits until that has come. */
static void put(struct driven *d, unsigned stream, const char *text)
{
    struct process_info i;
    process_get(d->process, &i, NULL);
    uint64_t want = i.size[stream] + strlen(text);
    assert_int_equal(write(d->ends[stream], text, strlen(text)), strlen(text));

    for (deadline t = deadline_in(PATIENCE); i.size[stream] < want; usleep(200)) {
        assert_false(deadline_passed(t));
        process_get(d->process, &i, NULL);
    }
}

static enum reader_item next(struct driven *d, const char *text)
{
    struct pd_err e = {0};
    unsigned stream = STREAM_ALL;
    size_t len = 0;
    enum reader_item item = reader_next(d->reader, false, &stream, &len, &e);
    if (item == ITEM_TEXT) {
        assert_int_equal(len, strlen(text));
        assert_memory_equal(d->reader->text, text, len);
    }
    return item;
}

#define END "{\"type\":\"end\",\"id\":\"x\",\"seq\":1,\"ok\":true}\n"

static void test_an_event_waits_for_text_that_is_late(void **state)
{
    struct driven d = drive(*state, true);
    put(&d, STREAM_EVENTS, END);
    assert_int_equal(next(&d, ""), ITEM_NONE);
    assert_true(reader_due(d.reader) != DEADLINE_NONE);

    put(&d, STREAM_OUT, "late");
    assert_int_equal(next(&d, "late"), ITEM_TEXT);
    put(&d, STREAM_OUT, "r\x1ex 1\x1e");
    assert_int_equal(next(&d, "r"), ITEM_TEXT);
    assert_int_equal(next(&d, ""), ITEM_NONE);

    put(&d, STREAM_ERR, "\x1ex 1\x1e");
    assert_int_equal(next(&d, ""), ITEM_EVENT);
    assert_int_equal(d.reader->event.type, EVENT_END);
    assert_true(reader_due(d.reader) == DEADLINE_NONE);
    driven_end(&d);
}

static void test_a_mark_that_never_comes_is_waited_for_once(void **state)
{
    struct driven d = drive(*state, true);
    put(&d, STREAM_OUT, "text\x1ex 1\x1e");
    put(&d, STREAM_EVENTS, END);
    assert_int_equal(next(&d, "text"), ITEM_TEXT);
    assert_int_equal(next(&d, ""), ITEM_NONE);

    d.reader->patience = 1; /* it is over */
    assert_int_equal(next(&d, ""), ITEM_EVENT);
    put(&d, STREAM_OUT, "\x1ex 2\x1e");
    put(&d, STREAM_EVENTS, "{\"type\":\"end\",\"id\":\"x\",\"seq\":2,\"ok\":true}\n");
    assert_int_equal(next(&d, ""), ITEM_EVENT);
    driven_end(&d);
}

static void test_on_this_machine_nothing_is_waited_for(void **state)
{
    struct driven d = drive(*state, false);
    put(&d, STREAM_EVENTS, END);
    assert_int_equal(next(&d, ""), ITEM_EVENT);
    driven_end(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_event_waits_for_text_that_is_late, setup,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_a_mark_that_never_comes_is_waited_for_once, setup,
                                        stage_teardown),
        cmocka_unit_test_setup_teardown(test_on_this_machine_nothing_is_waited_for, setup,
                                        stage_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
