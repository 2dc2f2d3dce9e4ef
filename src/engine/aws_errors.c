/* Refusals of AWS, translated for whoever asked for a sandbox. ECS answers JSON with a type, the
 * others XML, and a signature that is refused is XML everywhere; a proxy in between says anything.
 */
#include "engine/ecs_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/xml_text.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *code, *words; /* words: in the message; "" for any */
    enum pd_code means;
    const char *remedy;
} reasons[] = {
    {"", "Capacity is unavailable", PD_CAPACITY, "; name subnets of more zones in fargate_subnets"},
    {"", "limit on the number of vCPUs", PD_CAPACITY, "; ask AWS for a higher quota"},
    {"LimitExceededException", "", PD_CAPACITY, ""},
    {"ClusterNotFoundException", "", PD_BAD_GATEWAY, "; check fargate_cluster and the region"},
    {"ServerException", "", PD_BAD_GATEWAY, ""},
    {"AccessDenied", "", PD_BAD_GATEWAY,
     "; the server's role needs ecs:RunTask, ecs:StopTask, ecs:ListTasks, ecs:DescribeTasks, "
     "ecs:TagResource and iam:PassRole"},
    {"UnrecognizedClient", "", PD_BAD_GATEWAY, "; AWS does not know the server's key"},
    {"InvalidClientTokenId", "", PD_BAD_GATEWAY, "; AWS does not know the server's key"},
    {"SignatureDoesNotMatch", "", PD_BAD_GATEWAY, "; the server's secret key is wrong"},
    {"ExpiredToken", "", PD_BAD_GATEWAY, "; the server's session token has ended"},
    {"TargetGroupNotFound", "", PD_BAD_GATEWAY, "; check fargate_target_group"},
    {"", "TaskDefinition not found", PD_BAD_GATEWAY, "; check fargate_task_definition"},
    {"", "task definition", PD_BAD_GATEWAY, "; check fargate_task_definition"},
};

static const char *const throttles[] = {"Throttl",          "TooManyRequests",
                                        "RequestLimit",     "SlowDown",
                                        "BandwidthLimit",   "PriorRequestNotComplete",
                                        "RequestThrottled", "ProvisionedThroughputExceeded"};

static void copy_words(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%.*s", (int)size - 1, text);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
}

static const char *text_of(const json_t *j, const char *name)
{
    const char *text = json_string_value(json_object_get(j, name));
    return text ? text : "";
}

/* "com.amazonaws.ecs#ClientException:http://..." is ClientException. */
static void copy_code(char *out, size_t size, const char *type)
{
    const char *hash = strrchr(type, '#');
    char word[160];

    snprintf(word, sizeof word, "%s", hash ? hash + 1 : type);
    word[strcspn(word, ":")] = 0;
    copy_words(out, size, word);
}

static void read_json(const json_t *j, struct aws_refusal *r)
{
    const json_t *ids = json_object_get(j, "resourceIds");
    const char *message = text_of(j, "message"), *id = json_string_value(json_array_get(ids, 0));

    copy_code(r->code, sizeof r->code, text_of(j, "__type"));
    if (!r->code[0])
        copy_code(r->code, sizeof r->code, text_of(j, "code"));
    copy_words(r->message, sizeof r->message, message[0] ? message : text_of(j, "Message"));
    if (id && strlen(id) < sizeof r->resource)
        copy_words(r->resource, sizeof r->resource, id);
}

void aws_read_refusal(int status, const void *body, size_t len, struct aws_refusal *ret)
{
    struct aws_refusal r = {0};
    json_t *j = json_loadb(body, len, 0, NULL);

    if (json_is_object(j)) {
        read_json(j, &r);
    } else {
        char code[sizeof r.code], message[sizeof r.message];
        xml_text(body, len, "Code", code, sizeof code);
        xml_text(body, len, "Message", message, sizeof message);
        copy_words(r.code, sizeof r.code, code);
        copy_words(r.message, sizeof r.message, message);
    }
    json_decref(j);
    if (!r.code[0] && !r.message[0])
        snprintf(r.message, sizeof r.message, "the server answers %d", status);
    *ret = r;
}

bool aws_is_passing(int status, const struct aws_refusal *r)
{
    if (status == 500 || status == 502 || status == 503 || status == 504 || status == 429 ||
        !strcmp(r->code, "RequestTimeout") || !strcmp(r->code, "RequestTimeoutException"))
        return true;
    for (size_t i = 0; i < sizeof throttles / sizeof *throttles; i++)
        if (strstr(r->code, throttles[i]))
            return true;
    return false;
}

bool aws_is_expired(const struct aws_refusal *r)
{
    return strstr(r->code, "ExpiredToken") || strstr(r->code, "InvalidClientTokenId") ||
           strstr(r->code, "UnrecognizedClient");
}

int aws_fail(int status, const struct aws_refusal *r, const char *what, struct pd_err *e)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(r->code, reasons[i].code) && strcasestr(r->message, reasons[i].words) &&
            (reasons[i].code[0] || reasons[i].words[0]))
            return pd_fail(e, reasons[i].means, "%.50s: %.40s%s%.70s%s", what, r->code,
                           r->code[0] ? ": " : "", r->message, reasons[i].remedy);
    return pd_fail(e, aws_is_passing(status, r) && status != 500 ? PD_RATE : PD_BAD_GATEWAY,
                   "%.50s: %.60s%s%.120s", what, r->code, r->code[0] ? ": " : "", r->message);
}
