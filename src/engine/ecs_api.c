/* Bodies and answers of Amazon ECS. A RunTask that is refused answers 200 as well, with "failures"
 * and no task; a task that was begun a moment ago may be missing from what DescribeTasks tells. */
#include "engine/ecs_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define SUBNETS_MOST 16u
#define GROUPS_MOST  5u
#define TOKEN_MAX    64u
#define MIB          (UINT64_C(1) << 20)

static void json_unref(json_t **j)
{
    json_decref(*j);
}
#define auto_json __attribute__((cleanup(json_unref))) json_t

/* ---- sizes ---- */

/* AWS's table: for each processor the memory, in steps. */
static const struct {
    unsigned cpu, least, most, step; /* MiB */
} sizes[] = {{256, 512, 1024, 512},      {256, 2048, 2048, 1024},     {512, 1024, 4096, 1024},
             {1024, 2048, 8192, 1024},   {2048, 4096, 16384, 1024},   {4096, 8192, 30720, 1024},
             {8192, 16384, 61440, 4096}, {16384, 32768, 122880, 8192}};

int ecs_choose_size(uint64_t cpu_milli, uint64_t memory_bytes, struct ecs_size *ret,
                    struct pd_err *e)
{
    uint64_t cpu = cpu_milli > 1000000 ? UINT32_MAX : (cpu_milli * 1024 + 999) / 1000;
    uint64_t memory = memory_bytes / MIB + (memory_bytes % MIB != 0);

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t need = memory < sizes[i].least ? sizes[i].least : memory;
        need = sizes[i].least +
               (need - sizes[i].least + sizes[i].step - 1) / sizes[i].step * sizes[i].step;
        if (cpu <= sizes[i].cpu && need <= sizes[i].most) {
            *ret = (struct ecs_size){.cpu = sizes[i].cpu, .memory = (unsigned)need};
            return 0;
        }
    }
    return pd_fail(e, PD_INVALID,
                   "no task of Fargate has %llu MiB of memory and %llu thousandths of a "
                   "processor: at most 16 processors and 120 GiB",
                   (unsigned long long)memory, (unsigned long long)cpu_milli);
}

/* ---- bodies ---- */

static int put_names(struct json *j, const char *key, const char *list, unsigned most,
                     struct pd_err *e)
{
    unsigned count = 0;

    json_key(j, key);
    json_open(j, '[');
    while (*list) {
        size_t len = strcspn(list, ", ");
        if (len && ++count > most)
            return pd_fail(e, PD_INVALID, "more than %u %s", most, key);
        if (len)
            json_str(j, list, len);
        list += len;
        list += strspn(list, ", ");
    }
    json_close(j, ']');
    return 0;
}

static int put_network(struct json *j, const struct ecs_place *p, struct pd_err *e)
{
    json_key(j, "networkConfiguration");
    json_open(j, '{');
    json_key(j, "awsvpcConfiguration");
    json_open(j, '{');
    if (put_names(j, "subnets", p->subnets, SUBNETS_MOST, e) < 0 ||
        put_names(j, "securityGroups", p->groups, GROUPS_MOST, e) < 0)
        return -1;
    json_member_cstr(j, "assignPublicIp", p->public_address ? "ENABLED" : "DISABLED");
    json_close(j, '}');
    json_close(j, '}');
    return 0;
}

static void put_pair(struct json *j, const char *first, const char *name, const char *value)
{
    json_open(j, '{');
    json_member_cstr(j, first, name);
    json_member_cstr(j, "value", value);
    json_close(j, '}');
}

static void put_container(struct json *j, const struct ecs_plan *p)
{
    json_open(j, '{');
    json_member_cstr(j, "name", p->place->container);
    if (p->command) {
        json_key(j, "command");
        json_open(j, '[');
        for (const char *const *word = p->command; *word; word++)
            json_cstr(j, *word);
        json_close(j, ']');
    }
    json_key(j, "environment");
    json_open(j, '[');
    for (unsigned i = 0; i < p->variable_count; i++)
        put_pair(j, "name", p->variables[i].name, p->variables[i].value);
    json_close(j, ']');
    json_close(j, '}');
}

/* Numbers are texts there. */
static int put_overrides(struct json *j, const struct ecs_plan *p, struct pd_err *e)
{
    char cpu[16], memory[16];
    size_t from;

    snprintf(cpu, sizeof cpu, "%u", p->size.cpu);
    snprintf(memory, sizeof memory, "%u", p->size.memory);
    json_key(j, "overrides");
    from = j->out->len;
    json_open(j, '{');
    json_member_cstr(j, "cpu", cpu);
    json_member_cstr(j, "memory", memory);
    json_key(j, "containerOverrides");
    json_open(j, '[');
    put_container(j, p);
    json_close(j, ']');
    json_close(j, '}');
    return j->out->len - from <= ECS_OVERRIDE_MAX
               ? 0
               : pd_fail(e, PD_TOO_LARGE,
                         "what a task is told at its start is %zu bytes, and AWS takes %u",
                         j->out->len - from, ECS_OVERRIDE_MAX);
}

static void put_capacity(struct json *j, bool spot)
{
    if (!spot) {
        json_member_cstr(j, "launchType", "FARGATE");
        return;
    }
    json_key(j, "capacityProviderStrategy");
    json_open(j, '[');
    json_open(j, '{');
    json_member_cstr(j, "capacityProvider", "FARGATE_SPOT");
    json_member_int(j, "weight", 1);
    json_close(j, '}');
    json_close(j, ']');
}

int ecs_run_body(struct buf *out, const struct ecs_plan *p, struct pd_err *e)
{
    struct json j = JSON_INIT(out);
    size_t token = strlen(p->token);

    if (!token || token > TOKEN_MAX)
        return pd_fail(e, PD_INTERNAL, "a token of %zu bytes for a task", token);
    json_open(&j, '{');
    json_member_cstr(&j, "cluster", p->place->cluster);
    json_member_cstr(&j, "taskDefinition", p->place->definition);
    json_member_int(&j, "count", 1);
    put_capacity(&j, p->place->spot);
    json_member_cstr(&j, "startedBy", p->owner);
    json_member_cstr(&j, "clientToken", p->token);
    json_key(&j, "tags");
    json_open(&j, '[');
    put_pair(&j, "key", ECS_TAG_OWNER, p->owner);
    put_pair(&j, "key", ECS_TAG_BOX, p->box);
    json_close(&j, ']');
    if (put_network(&j, p->place, e) < 0 || put_overrides(&j, p, e) < 0)
        return -1;
    json_close(&j, '}');
    return out->overflow ? pd_fail(e, PD_TOO_LARGE, "a request for a task is too long") : 0;
}

void ecs_describe_body(struct buf *out, const char *cluster, const char (*arns)[ECS_ARN_MAX],
                       unsigned count)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "cluster", cluster);
    json_key(&j, "tasks");
    json_open(&j, '[');
    for (unsigned i = 0; i < count; i++)
        json_cstr(&j, arns[i]);
    json_close(&j, ']');
    json_key(&j, "include");
    json_open(&j, '[');
    json_cstr(&j, "TAGS");
    json_close(&j, ']');
    json_close(&j, '}');
}

void ecs_stop_body(struct buf *out, const char *cluster, const char *arn, const char *reason)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "cluster", cluster);
    json_member_cstr(&j, "task", arn);
    json_member_cstr(&j, "reason", reason);
    json_close(&j, '}');
}

void ecs_list_body(struct buf *out, const char *cluster, const char *owner, bool stopped,
                   const char *next)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "cluster", cluster);
    json_member_cstr(&j, "startedBy", owner);
    json_member_cstr(&j, "desiredStatus", stopped ? "STOPPED" : "RUNNING");
    json_member_int(&j, "maxResults", ECS_TASKS_MOST);
    if (next[0])
        json_member_cstr(&j, "nextToken", next);
    json_close(&j, '}');
}

/* ---- answers ---- */

static const char *text_of(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    const char *text = json_string_value(v);
    return text && strlen(text) == json_string_length(v) ? text : "";
}

/* What is too long is "": a part of a name would be another one. */
static void copy_text(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", strlen(text) < size ? text : "");
}

/* On one line, cut off. */
static void copy_words(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%.*s", (int)size - 1, text);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
}

static bool arn_ok(const char *arn)
{
    size_t len = strlen(arn);
    return len > 4 && len < ECS_ARN_MAX && !strncmp(arn, "arn:", 4) &&
           strspn(arn, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/_.-") ==
               len;
}

static enum ecs_status status_of(const char *text)
{
    static const struct {
        const char *text;
        enum ecs_status status;
    } all[] = {{"RUNNING", ECS_RUNNING}, {"DEACTIVATING", ECS_GOING},
               {"STOPPING", ECS_GOING},  {"DEPROVISIONING", ECS_GOING},
               {"STOPPED", ECS_STOPPED}, {"DELETED", ECS_STOPPED}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(text, all[i].text))
            return all[i].status;
    return ECS_COMING;
}

/* It is dialled: it has to be an address and nothing else. */
static bool address_ok(const char *text)
{
    struct in6_addr a;
    return inet_pton(AF_INET, text, &a) == 1 || inet_pton(AF_INET6, text, &a) == 1;
}

static void read_address(const json_t *task, char out[46])
{
    const json_t *attachments = json_object_get(task, "attachments");

    for (size_t i = 0; i < json_array_size(attachments) && !out[0]; i++) {
        const json_t *a = json_array_get(attachments, i);
        const json_t *details = json_object_get(a, "details");
        if (strcmp(text_of(a, "type"), "ElasticNetworkInterface") != 0)
            continue;
        for (size_t k = 0; k < json_array_size(details); k++) {
            const json_t *d = json_array_get(details, k);
            if (!strcmp(text_of(d, "name"), "privateIPv4Address") &&
                address_ok(text_of(d, "value")))
                copy_text(out, 46, text_of(d, "value"));
        }
    }
}

static void read_tags(const json_t *task, struct ecs_task *t)
{
    const json_t *tags = json_object_get(task, "tags");

    for (size_t i = 0; i < json_array_size(tags); i++) {
        const json_t *tag = json_array_get(tags, i);
        if (!strcmp(text_of(tag, "key"), ECS_TAG_OWNER))
            copy_text(t->owner, sizeof t->owner, text_of(tag, "value"));
        if (!strcmp(text_of(tag, "key"), ECS_TAG_BOX))
            copy_text(t->box, sizeof t->box, text_of(tag, "value"));
    }
}

/* Of the first container that has ended: there is one in our tasks. Its own reason is the better
 * one ("OutOfMemoryError: ..."). */
static void read_end(const json_t *task, struct ecs_task *t)
{
    const json_t *containers = json_object_get(task, "containers");

    t->exit_code = -1;
    copy_words(t->stop_code, sizeof t->stop_code, text_of(task, "stopCode"));
    copy_words(t->why, sizeof t->why, text_of(task, "stoppedReason"));
    for (size_t i = 0; i < json_array_size(containers) && t->exit_code < 0; i++) {
        const json_t *c = json_array_get(containers, i), *code = json_object_get(c, "exitCode");
        json_int_t n = json_integer_value(code);
        if (json_is_integer(code) && n >= 0 && n <= 255)
            t->exit_code = (int)n;
        if (text_of(c, "reason")[0])
            copy_words(t->why, sizeof t->why, text_of(c, "reason"));
    }
}

static int read_task(const json_t *j, struct ecs_task *ret)
{
    const char *arn = text_of(j, "taskArn");

    *ret = (struct ecs_task){.status = status_of(text_of(j, "lastStatus"))};
    if (!arn_ok(arn))
        return -1;
    copy_text(ret->arn, sizeof ret->arn, arn);
    ret->wanted = strcmp(text_of(j, "desiredStatus"), "STOPPED") != 0;
    read_address(j, ret->address);
    read_tags(j, ret);
    read_end(j, ret);
    return 0;
}

static json_t *load(const void *json, size_t len, const char *what, struct pd_err *e)
{
    json_t *j = json_loadb(json, len, 0, NULL);
    if (json_is_object(j))
        return j;
    json_decref(j);
    pd_fail(e, PD_PROTOCOL, "the answer of ECS to %s is no JSON object", what);
    return NULL;
}

static int fail_to_run(const json_t *j, struct pd_err *e)
{
    const json_t *first = json_array_get(json_object_get(j, "failures"), 0);
    struct aws_refusal r = {0};

    copy_words(r.code, sizeof r.code, text_of(first, "reason"));
    copy_words(r.message, sizeof r.message, text_of(first, "detail"));
    if (!r.code[0])
        return pd_fail(e, PD_BAD_GATEWAY, "ECS tells of no task and of no failure");
    bool is_room = strstr(r.code, "RESOURCE") || strcasestr(r.code, "capacity");
    return pd_fail(e, is_room ? PD_CAPACITY : PD_BAD_GATEWAY, "ECS starts no task: %.90s%s%.100s",
                   r.code, r.message[0] ? ": " : "", r.message);
}

int ecs_read_run(const void *json, size_t len, struct ecs_task *ret, struct pd_err *e)
{
    auto_json *j = load(json, len, "RunTask", e);
    struct ecs_task t;

    if (!j)
        return -1;
    const json_t *tasks = json_object_get(j, "tasks");
    if (json_array_size(tasks) == 0)
        return fail_to_run(j, e);
    if (read_task(json_array_get(tasks, 0), &t) < 0)
        return pd_fail(e, PD_PROTOCOL, "ECS tells of a task without a name");
    *ret = t;
    return 0;
}

int ecs_read_tasks(const void *json, size_t len, ecs_each *each, void *context, struct pd_err *e)
{
    auto_json *j = load(json, len, "DescribeTasks", e);
    const json_t *tasks = json_object_get(j, "tasks");

    if (!j)
        return -1;
    for (size_t i = 0; i < json_array_size(tasks) && i < ECS_TASKS_MOST; i++) {
        struct ecs_task t;
        int r = read_task(json_array_get(tasks, i), &t) < 0 ? 0 : each(context, &t, e);
        if (r)
            return r;
    }
    return 0;
}

int ecs_read_list(const void *json, size_t len, struct ecs_page *ret, struct pd_err *e)
{
    auto_json *j = load(json, len, "ListTasks", e);
    const json_t *arns = json_object_get(j, "taskArns");

    if (!j)
        return -1;
    ret->count = 0;
    for (size_t i = 0; i < json_array_size(arns) && ret->count < ECS_TASKS_MOST; i++) {
        const char *arn = json_string_value(json_array_get(arns, i));
        if (arn && arn_ok(arn))
            copy_text(ret->arns[ret->count++], ECS_ARN_MAX, arn);
    }
    copy_text(ret->next, sizeof ret->next, text_of(j, "nextToken"));
    return 0;
}

void ecs_say_end(const struct ecs_task *t, char *out, size_t size)
{
    if (t->status != ECS_GOING && t->status != ECS_STOPPED) {
        snprintf(out, size, "the task runs");
        return;
    }
    if (strcasestr(t->why, "OutOfMemory"))
        snprintf(out, size, "the task was out of memory");
    else if (!strcmp(t->stop_code, "SpotInterruption"))
        snprintf(out, size, "AWS took its spot capacity back");
    else if (t->exit_code >= 0)
        snprintf(out, size, "the task has ended with %d%s%.100s", t->exit_code,
                 t->why[0] ? ": " : "", t->why);
    else
        snprintf(out, size, "the task has ended: %.110s", t->why[0] ? t->why : t->stop_code);
}
