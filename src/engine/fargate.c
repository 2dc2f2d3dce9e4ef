/* Fargate: a box is a task of Amazon ECS.
 *
 *   RunTask with overrides (the key of the link, its id, the lease), startedBy the keeper
 *   DescribeTasks until it runs and has an address
 *   RegisterTargets, where a target group is named
 *   its port is dialled for a WebSocket: directly, or through the load balancer
 *
 * A task is made of the operator's task definition, whose image has paddock-box as its entry point:
 * AWS takes no image with RunTask. Its token is the id of its link, so a RunTask whose answer got
 * lost is said again and is the same task. Whose task it is its tags say: those of a keeper are
 * listed, and all that have a box's name are ended, so doubles are, too. A target is taken out of
 * its group before its task is stopped, also that of a task that has ended by itself: an address is
 * given to another task soon. */
#include "engine/fargate.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "box/key.h"
#include "engine/aws_client.h"
#include "engine/elb_api.h"
#include "engine/http.h"
#include "engine/remote.h"
#include "engine/ws_bytes.h"
#include "engine/ws_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX   (4u << 20)
#define BODY_MAX     (64u << 10)
#define PORT         7400
#define MISSING_WAIT (60 * NS_PER_S) /* a new task may not be told of at once */
#define WAIT_LEAST   (250 * NS_PER_MS)
#define WAIT_MOST    (3 * NS_PER_S)
#define SLICE        (200 * NS_PER_MS)
#define LOOK_WAIT    (10 * NS_PER_S)
#define TRIES_MOST   64
#define COOKIES_MAX  4096

struct fargate {
    struct remote remote;
    struct aws_client aws;
    struct ecs_place place;
    const char *group; /* target group, "" for none */
    const char *balancer;
    unsigned port;
    char cookies[COOKIES_MAX]; /* the balancer's, of the box's own task */
};

static struct fargate *self(struct remote *r)
{
    return (struct fargate *)r;
}

/* ---- settings ---- */

static const char *const settings[] = {
    "region",          "endpoint",  "cluster", "task_definition", "container", "subnets", "port",
    "security_groups", "public_ip", "spot",    "target_group",    "balancer",  "network", NULL};

static int read_switch(const struct broker_config *c, const char *word, bool *ret, struct pd_err *e)
{
    const char *value = broker_setting(c, word);

    *ret = !strcmp(value, "on");
    return *ret || !value[0] || !strcmp(value, "off")
               ? 0
               : pd_fail(e, PD_INVALID, "fargate_%s = %.20s: use on or off", word, value);
}

static int read_settings(struct fargate *f, const struct broker_config *c, struct pd_err *e)
{
    const char *port = broker_setting(c, "port"), *container = broker_setting(c, "container");
    const char *cluster = broker_setting(c, "cluster");
    uint64_t number = PORT;

    f->group = broker_setting(c, "target_group");
    f->balancer = broker_setting(c, "balancer");
    f->place = (struct ecs_place){.cluster = cluster[0] ? cluster : "default",
                                  .definition = broker_setting(c, "task_definition"),
                                  .container = container[0] ? container : "paddock",
                                  .subnets = broker_setting(c, "subnets"),
                                  .groups = broker_setting(c, "security_groups")};
    if (!f->place.definition[0])
        return pd_fail(e, PD_INVALID,
                       "provider fargate needs fargate_task_definition: tasks are made of it");
    if (!f->place.subnets[0])
        return pd_fail(e, PD_INVALID,
                       "provider fargate needs fargate_subnets: tasks are put there");
    if (f->group[0] && strncmp(f->group, "arn:", 4) != 0)
        return pd_fail(e, PD_INVALID, "fargate_target_group = %.60s: use its ARN", f->group);
    if (f->balancer[0] && !f->group[0])
        return pd_fail(e, PD_INVALID,
                       "fargate_balancer needs fargate_target_group: it leads there");
    if (f->balancer[0] && strncmp(f->balancer, "https://", 8) != 0 &&
        strncmp(f->balancer, "http://", 7) != 0)
        return pd_fail(e, PD_INVALID, "fargate_balancer = %.60s: use https://HOST", f->balancer);
    if (read_switch(c, "public_ip", &f->place.public_address, e) < 0 ||
        read_switch(c, "spot", &f->place.spot, e) < 0 ||
        (port[0] && parse_u64("fargate_port", port, 1, 65535, &number, e) < 0))
        return -1;
    f->port = (unsigned)number;
    return 0;
}

static void fargate_close(struct remote *r)
{
    if (!r)
        return;
    aws_close(&self(r)->aws);
    free(r);
}

static struct remote *fargate_open(const struct broker_config *c, struct pd_err *e)
{
    struct fargate *f = calloc(1, sizeof *f);

    if (!f) {
        pd_fail(e, PD_CAPACITY, "no memory for a backend");
        return NULL;
    }
    if (read_settings(f, c, e) < 0 ||
        aws_open(&f->aws, broker_setting(c, "region"), broker_setting(c, "endpoint"), e) < 0) {
        fargate_close(&f->remote);
        return NULL;
    }
    f->aws.context = &f->remote;
    return &f->remote;
}

static int check_spec(const struct remote *r, const struct spec *s, struct pd_err *e)
{
    struct ecs_size size;

    /* Remote kinds have no other network than none, and here nobody but the operator can say that
     * there is none: a security group is his. */
    if (strcmp(broker_setting(r->config, "network"), "isolated") != 0)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider fargate cannot see that tasks have no network: let "
                       "fargate_security_groups let nothing out, and say fargate_network = "
                       "isolated");
    if (s->image[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider fargate takes its image from fargate_task_definition, not with "
                       "each sandbox ('%.60s')",
                       s->image);
    return ecs_choose_size(s->limits.cpu_milli, s->limits.memory, &size, e);
}

/* ---- tasks ---- */

static int describe(struct fargate *f, const char (*arns)[ECS_ARN_MAX], unsigned count,
                    ecs_each *each, void *context, deadline t, struct pd_err *e)
{
    auto_buf body = BUF_INIT(BODY_MAX), out = BUF_INIT(ANSWER_MAX);

    ecs_describe_body(&body, f->place.cluster, arns, count);
    if (aws_call(&f->aws, AWS_ECS, "DescribeTasks", &body, &out, NULL, "ask for tasks", t, e) < 0)
        return -1;
    return ecs_read_tasks(out.data, out.len, each, context, e);
}

/* All of a keeper's that run, or those that have stopped within the last hour. */
static int each_task(struct fargate *f, const char *owner, bool stopped, ecs_each *each,
                     void *context, deadline t, struct pd_err *e)
{
    struct ecs_page page; /* a callback may list as well */

    page.next[0] = 0;
    do {
        auto_buf body = BUF_INIT(BODY_MAX), out = BUF_INIT(ANSWER_MAX);
        ecs_list_body(&body, f->place.cluster, owner, stopped, page.next);
        if (aws_call(&f->aws, AWS_ECS, "ListTasks", &body, &out, NULL, "list tasks", t, e) < 0 ||
            ecs_read_list(out.data, out.len, &page, e) < 0)
            return -1;
        int r = page.count ? describe(f, page.arns, page.count, each, context, t, e) : 0;
        if (r)
            return r;
    } while (page.next[0]);
    return 0;
}

/* "paddock/INSTANCE": ECS takes letters, digits, - _ / in startedBy. */
static void owner_name(const char *instance, char out[64])
{
    snprintf(out, 64, "paddock/%.40s", instance);
}

static int take_one(void *context, const struct ecs_task *t, struct pd_err *e)
{
    struct ecs_task *found = context;

    (void)e;
    *found = *t;
    return 1;
}

/* The task of this name. Without arn in *ret: it is not told of (yet). */
static int find_task(struct fargate *f, const char *arn, struct ecs_task *ret, deadline t,
                     struct pd_err *e)
{
    char names[1][ECS_ARN_MAX];

    snprintf(names[0], sizeof names[0], "%s", arn);
    ret->arn[0] = 0;
    return describe(f, (const char(*)[ECS_ARN_MAX])names, 1, take_one, ret, t, e) < 0 ? -1 : 0;
}

/* False when nobody waits any more, or there is no time. */
static bool wait_a_while(struct fargate *f, uint64_t *wait, deadline t)
{
    for (uint64_t left = *wait; left;) {
        uint64_t part = left < SLICE ? left : SLICE;
        if (!remote_is_wanted(&f->remote) || deadline_passed(t))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = (long)part}, NULL);
        left -= part;
    }
    *wait = *wait * 2 > WAIT_MOST ? WAIT_MOST : *wait * 2;
    return remote_is_wanted(&f->remote) && !deadline_passed(t);
}

static int fail_waiting(struct fargate *f, const char *what, struct pd_err *e)
{
    return remote_is_wanted(&f->remote)
               ? pd_fail(e, PD_TIMEOUT, "%s", what)
               : pd_fail(e, PD_CONFLICT, "the sandbox is not wanted any more");
}

/* Until it runs and has an address. */
static int await_running(struct fargate *f, struct ecs_task *task, deadline t, struct pd_err *e)
{
    deadline told = deadline_in(MISSING_WAIT);
    uint64_t wait = WAIT_LEAST;
    struct ecs_task now;

    for (;;) {
        if (!wait_a_while(f, &wait, t))
            return fail_waiting(f, "the task does not run in time", e);
        if (find_task(f, task->arn, &now, t, e) < 0)
            return -1;
        if (!now.arn[0]) {
            if (deadline_passed(told))
                return pd_fail(e, PD_LOST, "ECS does not know the task that it has started");
            continue;
        }

        if (now.status == ECS_GOING || now.status == ECS_STOPPED || !now.wanted) {
            char why[160];
            ecs_say_end(&now, why, sizeof why);
            bool is_room = strstr(now.why, "Capacity is unavailable") ||
                           strstr(now.why, "InsufficientFreeAddresses");
            return pd_fail(e, is_room ? PD_CAPACITY : PD_LOST, "%s", why);
        }
        *task = now;
        if (now.status == ECS_RUNNING && now.address[0])
            return 0;
    }
}

/* ---- targets ---- */

static int target_call(struct fargate *f, const char *action, const char *address, struct buf *out,
                       struct aws_refusal *ret, const char *what, deadline t, struct pd_err *e)
{
    auto_buf form = BUF_INIT(BODY_MAX);

    elb_target_form(&form, action, f->group, address, f->port);
    return aws_call(&f->aws, AWS_ELB, action, &form, out, ret, what, t, e);
}

static int register_target(struct fargate *f, const char *address, deadline t, struct pd_err *e)
{
    auto_buf out = BUF_INIT(BODY_MAX);
    struct aws_refusal refusal;

    if (!f->group[0])
        return 0;
    return target_call(f, "RegisterTargets", address, &out, &refusal, "register a target", t, e);
}

/* Fine when it is not registered. */
static int deregister_target(struct fargate *f, const char *address, deadline t, struct pd_err *e)
{
    auto_buf out = BUF_INIT(BODY_MAX);
    struct aws_refusal refusal;

    if (!f->group[0] || !address[0] ||
        target_call(f, "DeregisterTargets", address, &out, &refusal, "take a target out", t, e) ==
            0)
        return 0;
    return strstr(refusal.code, "InvalidTarget") || strstr(refusal.code, "TargetGroupNotFound")
               ? 0
               : -1;
}

/* ---- boxes ---- */

static int start(struct fargate *f, const struct remote_plan *p, struct ecs_task *ret, deadline t,
                 struct pd_err *e)
{
    auto_buf body = BUF_INIT(BODY_MAX), out = BUF_INIT(ANSWER_MAX);
    struct remote_words words;
    struct aws_refusal refusal;
    char owner[64], listen[24], key[2 * REMOTE_KEY + 1];
    const struct ecs_variable variables[] = {{KEY_VARIABLE, key}};

    remote_run_words(p, "env", &words);
    snprintf(listen, sizeof listen, "listen=%u", f->port);
    const char *command[REMOTE_WORDS + 3] = {"run", listen};
    for (unsigned i = 0; i < words.count; i++)
        command[2 + i] = words.text[i];
    for (unsigned i = 0; i < REMOTE_KEY; i++)
        snprintf(key + (size_t)2 * i, 3, "%02x", p->key[i]);
    owner_name(p->instance, owner);

    struct ecs_plan plan = {.place = &f->place,
                            .owner = owner,
                            .box = p->box,
                            .token = p->link,
                            .command = command,
                            .variables = variables,
                            .variable_count = 1};
    int r = ecs_choose_size(p->spec->limits.cpu_milli, p->spec->limits.memory, &plan.size, e);
    if (r == 0)
        r = ecs_run_body(&body, &plan, e);
    explicit_bzero(key, sizeof key);
    if (r == 0)
        r = aws_call(&f->aws, AWS_ECS, "RunTask", &body, &out, &refusal, "start a task", t, e);
    if (body.data)
        explicit_bzero(body.data, body.len);
    if (r == 0)
        return ecs_read_run(out.data, out.len, ret, e);

    /* The token is known: an earlier attempt has started it, and its answer was lost. */
    if (strcmp(refusal.code, "ConflictException") != 0 || !refusal.resource[0])
        return -1;
    *ret = (struct ecs_task){.status = ECS_COMING};
    snprintf(ret->arn, sizeof ret->arn, "%s", refusal.resource);
    return 0;
}

static void write_place(const struct fargate *f, const struct ecs_task *task, const char *link,
                        char out[REMOTE_PLACE_MAX])
{
    bool is_v6 = strchr(task->address, ':') != NULL;
    snprintf(out, REMOTE_PLACE_MAX, "%s%s%s:%u,%s,%s", is_v6 ? "[" : "", task->address,
             is_v6 ? "]" : "", f->port, link, task->arn);
}

static int fargate_create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                          deadline t, struct pd_err *e)
{
    struct fargate *f = self(r);
    struct ecs_task task;

    /* Only here: what is made is ended whoever waits. */
    f->aws.is_wanted = remote_is_wanted;
    bool made = start(f, p, &task, t, e) == 0 && await_running(f, &task, t, e) == 0 &&
                register_target(f, task.address, t, e) == 0;
    f->aws.is_wanted = NULL;
    if (!made)
        return -1;
    *ret = (struct remote_state){.running = true};
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    write_place(f, &task, p->link, ret->place);
    return 0;
}

struct search {
    const char *box;
    struct ecs_task found; /* arn "" when there is none */
};

static int match(void *context, const struct ecs_task *t, struct pd_err *e)
{
    struct search *s = context;

    (void)e;
    if (strcmp(t->box, s->box) != 0)
        return 0;
    s->found = *t;
    return 1;
}

static int fargate_find(struct remote *r, const char *instance, const char *box,
                        struct remote_state *ret, deadline t, struct pd_err *e)
{
    struct fargate *f = self(r);
    struct search s = {.box = box};
    char owner[64];

    owner_name(instance, owner);
    int there = each_task(f, owner, false, match, &s, t, e);
    if (there == 0)
        there = each_task(f, owner, true, match, &s, t, e);
    if (there < 0)
        return -1;
    if (there == 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no task of it");

    *ret = (struct remote_state){.running = s.found.wanted && s.found.status <= ECS_RUNNING};
    snprintf(ret->box, sizeof ret->box, "%s", s.found.box);
    snprintf(ret->place, sizeof ret->place, "%s", s.found.arn);
    if (!ret->running)
        ecs_say_end(&s.found, ret->why, sizeof ret->why);
    return 0;
}

struct ending {
    struct fargate *fargate;
    const char *box;
    deadline deadline;
    int failed;
    struct pd_err error;
};

/* A failure does not keep the others from being ended. */
static int end_one(void *context, const struct ecs_task *task, struct pd_err *e)
{
    struct ending *w = context;
    struct fargate *f = w->fargate;
    auto_buf body = BUF_INIT(BODY_MAX), out = BUF_INIT(BODY_MAX);

    (void)e;
    if (strcmp(task->box, w->box) != 0)
        return 0;
    w->failed |= deregister_target(f, task->address, w->deadline, &w->error) < 0;
    if (!task->wanted)
        return 0;

    struct aws_refusal refusal;
    ecs_stop_body(&body, f->place.cluster, task->arn, "paddock: the sandbox has ended");
    if (aws_call(&f->aws, AWS_ECS, "StopTask", &body, &out, &refusal, "stop a task", w->deadline,
                 &w->error) < 0 &&
        !strstr(refusal.message, "not found"))
        w->failed = 1;
    return 0;
}

static int fargate_end(struct remote *r, const char *instance, const char *box, deadline t,
                       struct pd_err *e)
{
    struct fargate *f = self(r);
    struct ending w = {.fargate = f, .box = box, .deadline = t};
    char owner[64];

    owner_name(instance, owner);
    if (each_task(f, owner, false, end_one, &w, t, e) < 0 ||
        (f->group[0] && each_task(f, owner, true, end_one, &w, t, e) < 0))
        return -1;
    return w.failed ? pd_fail(e, w.error.code, "%s", w.error.msg) : 0;
}

struct listing {
    remote_each *each;
    void *context;
};

static int tell_one(void *context, const struct ecs_task *t, struct pd_err *e)
{
    struct listing *l = context;
    struct remote_state s = {.running = t->wanted};

    if (!t->box[0])
        return 0; /* not ours, whoever started it so */
    snprintf(s.box, sizeof s.box, "%s", t->box);
    snprintf(s.place, sizeof s.place, "%s", t->arn);
    return l->each(l->context, &s, e);
}

static int fargate_each(struct remote *r, const char *instance, remote_each *each, void *context,
                        deadline t, struct pd_err *e)
{
    struct listing l = {.each = each, .context = context};
    char owner[64];

    owner_name(instance, owner);
    return each_task(self(r), owner, false, tell_one, &l, t, e);
}

/* ---- links ---- */

/* What write_place has written: "ADDRESS:PORT,LINK,ARN". */
struct place {
    char address[80], link[33];
    const char *arn;
};

static int read_place(const char *text, struct place *ret, struct pd_err *e)
{
    size_t address = strcspn(text, ","),
           link = text[address] ? strcspn(text + address + 1, ",") : 0;

    if (address == 0 || address >= sizeof ret->address || link != 32 || !text[address + 1 + link])
        return pd_fail(e, PD_INVALID, "'%.60s' is no place of a task", text);
    snprintf(ret->address, sizeof ret->address, "%.*s", (int)address, text);
    snprintf(ret->link, sizeof ret->link, "%.32s", text + address + 1);
    ret->arn = text + address + link + 2;
    return 0;
}

static struct ws_stream *dial(struct fargate *f, const struct place *p, struct ws_refusal *refusal,
                              deadline t, struct pd_err *e)
{
    char base[96], target[48], cookie[COOKIES_MAX + 16];
    const char *headers[] = {cookie, NULL};
    bool through = f->balancer[0];
    struct ws_request r = {.target = target, .headers = f->cookies[0] ? headers : NULL};
    struct http_place at = {.base = through ? f->balancer : base, .direct = !through};

    snprintf(base, sizeof base, "http://%s", p->address);
    snprintf(target, sizeof target, "/link/%s", p->link);
    snprintf(cookie, sizeof cookie, "Cookie: %s", f->cookies);
    struct http *h = http_new(&at, e);
    return h ? ws_stream_open(h, &r, t, refusal, e) : NULL;
}

/* The balancer leads to any task of its group, and one that is not the box answers 404. Its cookie
 * leads to the same task again: that of a wrong one is not sent, the right one's is, until its task
 * is gone and the balancer, which does not tell, leads to another. */
static struct ws_stream *dial_until_found(struct fargate *f, const struct place *p, deadline t,
                                          struct pd_err *e)
{
    for (int tries = 0;; tries++) {
        struct ws_refusal refusal = {.status = 0};
        struct ws_stream *s = dial(f, p, &refusal, t, e);
        if (s && f->balancer[0])
            snprintf(f->cookies, sizeof f->cookies, "%s", ws_stream_cookies(s));
        if (s || !f->balancer[0] || refusal.status != 404 || tries == TRIES_MOST ||
            deadline_passed(t))
            return s;
        f->cookies[0] = 0;
    }
}

static bool is_over(struct fargate *f, const char *arn, struct pd_err *e)
{
    struct ecs_task now;
    char why[160] = "ECS does not know it any more";

    if (find_task(f, arn, &now, deadline_in(LOOK_WAIT), NULL) < 0 ||
        (now.arn[0] && now.wanted && now.status <= ECS_RUNNING))
        return false;
    if (now.arn[0])
        ecs_say_end(&now, why, sizeof why);
    pd_fail(e, PD_LOST, "%s", why);
    return true;
}

static struct byte_stream *fargate_reach(struct remote *r, const char *place, deadline t,
                                         struct pd_err *e)
{
    struct fargate *f = self(r);
    struct place p;

    if (read_place(place, &p, e) < 0)
        return NULL;
    struct ws_stream *s = dial_until_found(f, &p, t, e);
    if (s)
        return ws_bytes(s, e);
    (void)is_over(f, p.arn, e); /* its address may be nobody's now, or another's */
    return NULL;
}

static int fargate_check(struct remote *r, remote_tell *tell, void *context, deadline t,
                         struct pd_err *e)
{
    struct fargate *f = self(r);
    auto_buf body = BUF_INIT(BODY_MAX), out = BUF_INIT(ANSWER_MAX);

    tell(context, "region", f->aws.region);
    tell(context, "endpoint", f->aws.at[AWS_ECS].base);
    tell(context, "cluster", f->place.cluster);
    tell(context, "task_definition", f->place.definition);
    if (!aws_chain_get(&f->aws.chain, t, e))
        return -1;
    tell(context, "credentials", f->aws.chain.from);

    struct ecs_page page;
    ecs_list_body(&body, f->place.cluster, "paddock/check", false, "");
    if (aws_call(&f->aws, AWS_ECS, "ListTasks", &body, &out, NULL, "list tasks", t, e) < 0)
        return -1;
    return ecs_read_list(out.data, out.len, &page, e); /* that it is ECS that answers */
}

const struct remote_kind fargate_remote = {
    .name = "fargate",
    .rung = RUNG_BASIC,
    .settings = settings,
    .open = fargate_open,
    .close = fargate_close,
    .check_spec = check_spec,
    .create = fargate_create,
    .find = fargate_find,
    .end = fargate_end,
    .each = fargate_each,
    .reach = fargate_reach,
    .check = fargate_check,
};
