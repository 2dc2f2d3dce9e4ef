/* What is said to AWS and what it answers: vectors of credentials, requests and answers. Answers
 * have the shape that real ones have (moto's, and those of AWS's documentation). */
#include "base/err.h"
#include "engine/aws_client.h"
#include "engine/aws_keys.h"
#include "engine/ecs_api.h"
#include "engine/elb_api.h"
#include "engine/xml_text.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static const char profiles[] = "# comment\n[default]\naws_access_key_id = AKIA1\r\n"
                               "aws_secret_access_key=s/1+x\n"
                               "s3 =\n    aws_access_key_id = NESTED\n"
                               "[ other ]\naws_access_key_id=ASIA2\naws_secret_access_key = s2\n"
                               "aws_session_token = t2==\nregion = eu-west-1\n"
                               "[profile third]\naws_access_key_id=AKIA3\n"
                               "aws_secret_access_key=s3\n[empty]\n";

static void test_profiles(void **state)
{
    static const struct {
        const char *profile;
        bool config;
        const char *id, *secret, *token; /* id NULL: there are none */
    } rows[] = {
        {"default", false, "AKIA1", "s/1+x", ""}, {"other", false, "ASIA2", "s2", "t2=="},
        {"third", false, NULL, NULL, NULL},       {"third", true, "AKIA3", "s3", ""},
        {"default", true, "AKIA1", "s/1+x", ""},  {"other", true, NULL, NULL, NULL},
        {"empty", false, NULL, NULL, NULL},       {"nobody", false, NULL, NULL, NULL},
    };
    static struct aws_keys k;
    char region[32];
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = aws_keys_read_profile(profiles, sizeof profiles - 1, rows[i].profile,
                                      rows[i].config, &k, &e);
        assert_int_equal(r, rows[i].id ? 0 : -1);
        if (!rows[i].id) {
            assert_int_equal(e.code, PD_NOT_FOUND);
            continue;
        }
        assert_string_equal(k.id, rows[i].id);
        assert_string_equal(k.secret, rows[i].secret);
        assert_string_equal(k.token, rows[i].token);
    }
    aws_profile_value(profiles, sizeof profiles - 1, "other", false, "region", region,
                      sizeof region);
    assert_string_equal(region, "eu-west-1");
}

static void test_keys_that_are_none_are_told_without_them(void **state)
{
    static const struct {
        const char *id, *secret, *token;
    } rows[] = {
        {"", "hunter2", ""},       {"AKIA", "", ""},           {"AK IA", "hunter2", ""},
        {"AKIA", "hunter2\n", ""}, {"AKIA", "hunter2", "a b"}, {"AKIA\r\nX: y", "hunter2", ""},
    };
    static struct aws_keys k;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(aws_keys_set(&k, rows[i].id, rows[i].secret, rows[i].token, &e), -1);
        assert_int_equal(e.code, PD_INVALID);
        assert_null(strstr(e.msg, "hunter2"));
    }
}

static void test_endpoints_of_keys(void **state)
{
    static const char good[] =
        "{\"Code\":\"Success\",\"AccessKeyId\":\"ASIA1\",\"SecretAccessKey\":"
        "\"s\",\"Token\":\"t\",\"Expiration\":\"2026-11-18T20:00:01Z\"}";
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"AccessKeyId\":1}",
        "{\"Code\":\"AssumeRoleUnauthorizedAccess\",\"Message\":\"no\"}",
        "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Expiration\":\"tomorrow\"}",
        "{\"AccessKeyId\":\"A\\u0000\",\"SecretAccessKey\":\"s\"}"};
    static struct aws_keys k;
    char role[129];
    struct pd_err e;

    (void)state;
    assert_int_equal(aws_keys_read_json(good, sizeof good - 1, &k, &e), 0);
    assert_string_equal(k.id, "ASIA1");
    assert_string_equal(k.token, "t");
    assert_int_equal(k.expires, 1795032001);
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(aws_keys_read_json(bad[i], strlen(bad[i]), &k, &e), -1);

    assert_int_equal(aws_role_read("my-role\nsecond", 14, role, &e), 0);
    assert_string_equal(role, "my-role");
    assert_int_equal(aws_role_read("", 0, role, &e), -1);
    assert_int_equal(aws_role_read("../../x", 7, role, &e), -1);
    assert_int_equal(aws_time_read("2026-11-18T20:00:00Z"), 1795032000);
    assert_int_equal(aws_time_read("2026-11-18T20:00:00.123Z"), 1795032000);
    assert_int_equal(aws_time_read("2026-11-18 20:00:00Z"), -1);
    assert_int_equal(aws_time_read("2026-13-18T20:00:00Z"), -1);
}

static void test_where_keys_are_asked_for(void **state)
{
    static const struct {
        const char *url, *base, *target;
    } rows[] = {
        {"http://169.254.170.2/v2/x?y", "http://169.254.170.2", "/v2/x?y"},
        {"http://169.254.170.23/v1", "http://169.254.170.23", "/v1"},
        {"http://[fd00:ec2::23]/v1", "http://[fd00:ec2::23]", "/v1"},
        {"http://127.0.0.1:1338", "http://127.0.0.1:1338", "/"},
        {"http://localhost:80?x", "http://localhost:80", "/?x"},
        {"https://keys.example/x", "https://keys.example", "/x"},
        {"http://keys.example/x", NULL, NULL},
        {"http://169.254.170.2.example/", NULL, NULL},
        {"http://169.254.170.2@evil.example/", NULL, NULL},
        {"http://evil\\@169.254.170.2/", NULL, NULL},
        {"ftp://127.0.0.1/", NULL, NULL},
        {"http:///x", NULL, NULL},
        {"http://127.0.0.1/a b", NULL, NULL},
        {"", NULL, NULL},
    };
    char base[280], target[1024];
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = aws_container_url(rows[i].url, base, target, &e);
        assert_int_equal(r, rows[i].base ? 0 : -1);
        if (r < 0)
            continue;
        assert_string_equal(base, rows[i].base);
        assert_string_equal(target, rows[i].target);
    }
}

static void test_hosts_and_clocks(void **state)
{
    char host[64];

    (void)state;
    aws_host_of("https://ecs.eu-west-1.amazonaws.com", host, sizeof host);
    assert_string_equal(host, "ecs.eu-west-1.amazonaws.com");
    aws_host_of("https://a:443", host, sizeof host);
    assert_string_equal(host, "a");
    aws_host_of("http://127.0.0.1:443", host, sizeof host);
    assert_string_equal(host, "127.0.0.1:443");
    assert_int_equal(aws_skew_of("Wed, 18 Nov 2026 20:00:00 GMT", 1795031000), 1000);
    assert_int_equal(aws_skew_of("Wed, 18 Nov 2026 20:00:00 GMT, x", 0), 0);
    assert_int_equal(aws_skew_of("", 0), 0);
}

static void test_sizes_of_tasks(void **state)
{
    static const struct {
        uint64_t milli, memory;
        unsigned cpu, mib; /* 0: there is none */
    } rows[] = {
        {0, 0, 256, 512},
        {250, 512 * MIB, 256, 512},
        {250, 513 * MIB, 256, 1024},
        {250, 1025 * MIB, 256, 2048},
        {250, 2049 * MIB, 512, 3072},
        {1000, 512 * MIB, 1024, 2048},
        {1001, 1 * MIB, 2048, 4096},
        {4000, 30721 * MIB, 8192, 32768},
        {8000, 61440 * MIB, 8192, 61440},
        {16000, 122880 * MIB, 16384, 122880},
        {16000, 122881 * MIB, 0, 0},
        {16001, 512 * MIB, 0, 0},
        {UINT64_MAX, UINT64_MAX, 0, 0},
    };
    struct ecs_size s;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = ecs_choose_size(rows[i].milli, rows[i].memory, &s, &e);
        assert_int_equal(r, rows[i].cpu ? 0 : -1);
        if (r < 0)
            continue;
        assert_int_equal(s.cpu, rows[i].cpu);
        assert_int_equal(s.memory, rows[i].mib);
    }
}

static struct ecs_place place(void)
{
    return (struct ecs_place){.cluster = "c\"1",
                              .definition = "sbx:3",
                              .container = "paddock",
                              .subnets = "subnet-1, subnet-2",
                              .groups = "sg-1"};
}

static void test_a_task_is_asked_for(void **state)
{
    static const char *const command[] = {"run", "box=1", NULL};
    static const struct ecs_variable variables[] = {{"KEY", "v"}};
    struct ecs_place p = place();
    struct ecs_plan plan = {.place = &p,
                            .owner = "paddock/own",
                            .box = "b.1",
                            .token = "0123",
                            .size = {.cpu = 256, .memory = 512},
                            .command = command,
                            .variables = variables,
                            .variable_count = 1};
    auto_buf out = BUF_INIT(65536);
    struct pd_err e;

    (void)state;
    assert_int_equal(ecs_run_body(&out, &plan, &e), 0);
    assert_string_equal(
        buf_cstr(&out),
        "{\"cluster\":\"c\\\"1\",\"taskDefinition\":\"sbx:3\",\"count\":1,\"launchType\":"
        "\"FARGATE\","
        "\"startedBy\":\"paddock/"
        "own\",\"clientToken\":\"0123\",\"tags\":[{\"key\":\"paddock.owner\","
        "\"value\":\"paddock/own\"},{\"key\":\"paddock.box\",\"value\":\"b.1\"}],"
        "\"networkConfiguration\":{\"awsvpcConfiguration\":{\"subnets\":[\"subnet-1\",\"subnet-2\"]"
        ","
        "\"securityGroups\":[\"sg-1\"],\"assignPublicIp\":\"DISABLED\"}},\"overrides\":{\"cpu\":"
        "\"256\",\"memory\":\"512\",\"containerOverrides\":[{\"name\":\"paddock\",\"command\":"
        "[\"run\",\"box=1\"],\"environment\":[{\"name\":\"KEY\",\"value\":\"v\"}]}]}}");

    p.spot = true;
    buf_clear(&out);
    assert_int_equal(ecs_run_body(&out, &plan, &e), 0);
    assert_non_null(strstr(buf_cstr(&out), "\"capacityProvider\":\"FARGATE_SPOT\""));
    assert_null(strstr(buf_cstr(&out), "launchType"));

    char *large = malloc(8300);
    memset(large, 'x', 8299);
    large[8299] = 0;
    struct ecs_variable big = {"KEY", large};
    plan.variables = &big;
    buf_clear(&out);
    assert_int_equal(ecs_run_body(&out, &plan, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
    free(large);

    plan.variables = variables;
    p.groups = "1,2,3,4,5,6";
    buf_clear(&out);
    assert_int_equal(ecs_run_body(&out, &plan, &e), -1);
}

static void test_other_requests(void **state)
{
    char arns[2][ECS_ARN_MAX] = {"arn:1", "arn:2"};
    auto_buf out = BUF_INIT(65536);

    (void)state;
    ecs_describe_body(&out, "c", (const char(*)[ECS_ARN_MAX])arns, 2);
    assert_string_equal(
        buf_cstr(&out),
        "{\"cluster\":\"c\",\"tasks\":[\"arn:1\",\"arn:2\"],\"include\":[\"TAGS\"]}");
    buf_clear(&out);
    ecs_stop_body(&out, "c", "arn:1", "why");
    assert_string_equal(buf_cstr(&out),
                        "{\"cluster\":\"c\",\"task\":\"arn:1\",\"reason\":\"why\"}");
    buf_clear(&out);
    ecs_list_body(&out, "c", "o", false, "");
    assert_string_equal(buf_cstr(&out), "{\"cluster\":\"c\",\"startedBy\":\"o\",\"desiredStatus\":"
                                        "\"RUNNING\",\"maxResults\":100}");
    buf_clear(&out);
    ecs_list_body(&out, "c", "o", true, "n");
    assert_non_null(strstr(buf_cstr(&out), "\"STOPPED\",\"maxResults\":100,\"nextToken\":\"n\""));
    buf_clear(&out);
    elb_target_form(&out, "RegisterTargets", "arn:a/b", "10.0.0.5", 7400);
    assert_string_equal(buf_cstr(&out), "Action=RegisterTargets&Version=2015-12-01&TargetGroupArn="
                                        "arn%3Aa%2Fb&Targets.member.1.Id=10.0.0.5&"
                                        "Targets.member.1.Port=7400");
}

#define TASK_BEGIN                                                                                 \
    "{\"taskArn\":\"arn:aws:ecs:eu-west-1:123:task/c/0a1b\",\"tags\":[{\"key\":\"paddock.box\","   \
    "\"value\":\"b.1\"},{\"key\":\"paddock.owner\",\"value\":\"own\"}],"
#define INTERFACE                                                                                  \
    "\"attachments\":[{\"type\":\"ElasticNetworkInterface\",\"details\":[{\"name\":\"subnetId\","  \
    "\"value\":\"s\"},{\"name\":\"privateIPv4Address\",\"value\":\"10.0.0.5\"}]}],"

static void test_tasks(void **state)
{
    static const char running[] = "{\"tasks\":[" TASK_BEGIN INTERFACE
                                  "\"lastStatus\":\"RUNNING\",\"desiredStatus\":\"RUNNING\"}],"
                                  "\"failures\":[]}";
    static const char failed[] = "{\"tasks\":[],\"failures\":[{\"arn\":\"x\",\"reason\":"
                                 "\"RESOURCE:ENI\",\"detail\":\"no room\"}]}";
    static const char *const bad[] = {"", "[]", "{}", "{\"tasks\":[{}]}",
                                      "{\"tasks\":[{\"taskArn\":\"arn:a\\nb\"}]}"};
    struct ecs_task t;
    struct pd_err e;

    (void)state;
    assert_int_equal(ecs_read_run(running, sizeof running - 1, &t, &e), 0);
    assert_string_equal(t.arn, "arn:aws:ecs:eu-west-1:123:task/c/0a1b");
    assert_string_equal(t.address, "10.0.0.5");
    assert_string_equal(t.box, "b.1");
    assert_string_equal(t.owner, "own");
    assert_int_equal(t.status, ECS_RUNNING);
    assert_true(t.wanted);

    assert_int_equal(ecs_read_run(failed, sizeof failed - 1, &t, &e), -1);
    assert_int_equal(e.code, PD_CAPACITY);
    assert_non_null(strstr(e.msg, "RESOURCE:ENI: no room"));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(ecs_read_run(bad[i], strlen(bad[i]), &t, &e), -1);
}

static int keep(void *context, const struct ecs_task *t, struct pd_err *e)
{
    (void)e;
    *(struct ecs_task *)context = *t;
    return 1;
}

static void test_ends_of_tasks(void **state)
{
    static const struct {
        const char *rest, *words;
    } rows[] = {
        {"\"lastStatus\":\"STOPPED\",\"stopCode\":\"EssentialContainerExited\",\"stoppedReason\":"
         "\"Essential container in task exited\",\"containers\":[{\"exitCode\":3}]}",
         "the task has ended with 3: Essential container in task exited"},
        {"\"lastStatus\":\"STOPPED\",\"containers\":[{\"exitCode\":137,\"reason\":"
         "\"OutOfMemoryError: Container killed\"}]}",
         "the task was out of memory"},
        {"\"lastStatus\":\"STOPPING\",\"stopCode\":\"SpotInterruption\"}",
         "AWS took its spot capacity back"},
        {"\"lastStatus\":\"STOPPED\",\"stopCode\":\"TaskFailedToStart\",\"stoppedReason\":"
         "\"CannotPullContainerError: \\n no\"}",
         "the task has ended: CannotPullContainerError:   no"},
        {"\"lastStatus\":\"SOMETHING\"}", "the task runs"},
    };
    struct ecs_task t;
    char text[1024], words[160];
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        snprintf(text, sizeof text, "{\"tasks\":[" TASK_BEGIN "%s]}", rows[i].rest);
        assert_int_equal(ecs_read_tasks(text, strlen(text), keep, &t, &e), 1);
        ecs_say_end(&t, words, sizeof words);
        assert_string_equal(words, rows[i].words);
        assert_string_equal(t.address, "");
    }
}

/* What it is dialled by has to be an address. */
static void test_addresses_of_tasks(void **state)
{
    static const char *const bad[] = {"evil.example", "10.0.0.5:80", "10.0.0.5,x", "", "10.0.0"};
    struct ecs_task t;
    char text[1024];

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        snprintf(text, sizeof text,
                 "{\"tasks\":[{\"taskArn\":\"arn:a:b\",\"attachments\":[{\"type\":"
                 "\"ElasticNetworkInterface\",\"details\":[{\"name\":\"privateIPv4Address\","
                 "\"value\":\"%s\"}]}]}]}",
                 bad[i]);
        assert_int_equal(ecs_read_run(text, strlen(text), &t, NULL), 0);
        assert_string_equal(t.address, "");
    }
}

static void test_lists(void **state)
{
    static const char list[] =
        "{\"taskArns\":[\"arn:a\",5,\"no arn\",\"arn:b\"],\"nextToken\":\"n\"}";
    static struct ecs_page p;
    struct pd_err e;

    (void)state;
    assert_int_equal(ecs_read_list(list, sizeof list - 1, &p, &e), 0);
    assert_int_equal(p.count, 2);
    assert_string_equal(p.arns[1], "arn:b");
    assert_string_equal(p.next, "n");
    assert_int_equal(ecs_read_list("{\"taskArns\":[]}", 15, &p, &e), 0);
    assert_int_equal(p.count, 0);
    assert_string_equal(p.next, "");
    assert_int_equal(ecs_read_list("x", 1, &p, &e), -1);
}

static void test_refusals(void **state)
{
    static const struct {
        int status;
        const char *body, *code;
        enum pd_code means;
        bool passes;
        const char *words;
    } rows[] = {
        {400, "{\"__type\":\"com.amazonaws.ecs#ClusterNotFoundException\",\"message\":\"none\"}",
         "ClusterNotFoundException", PD_BAD_GATEWAY, false, "check fargate_cluster"},
        {400, "{\"__type\":\"ThrottlingException\",\"message\":\"Rate exceeded\"}",
         "ThrottlingException", PD_RATE, true, "Rate exceeded"},
        {400, "{\"__type\":\"ClientException\",\"Message\":\"TaskDefinition not found\"}",
         "ClientException", PD_BAD_GATEWAY, false, "check fargate_task_definition"},
        {400, "{\"__type\":\"LimitExceededException\",\"message\":\"vCPUs\"}",
         "LimitExceededException", PD_CAPACITY, false, "vCPUs"},
        {403,
         "<ErrorResponse><Errors><Error><Code>SignatureDoesNotMatch</Code><Message>a &lt;b"
         "</Message></Error></Errors></ErrorResponse>",
         "SignatureDoesNotMatch", PD_BAD_GATEWAY, false, "the server's secret key is wrong"},
        {400, "{\"__type\":\"AccessDeniedException\",\"message\":\"User: x is not authorized\"}",
         "AccessDeniedException", PD_BAD_GATEWAY, false, "ecs:RunTask"},
        {503, "", "", PD_RATE, true, "the server answers 503"},
        {500, "{\"__type\":\"ServerException\",\"message\":\"x\"}", "ServerException",
         PD_BAD_GATEWAY, true, "x"},
        {502, "<html>bad</html>", "", PD_RATE, true, "the server answers 502"},
    };
    struct aws_refusal r;
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        aws_read_refusal(rows[i].status, rows[i].body, strlen(rows[i].body), &r);
        assert_string_equal(r.code, rows[i].code);
        assert_int_equal(aws_is_passing(rows[i].status, &r), rows[i].passes);
        assert_int_equal(aws_fail(rows[i].status, &r, "start a task", &e), -1);
        assert_int_equal(e.code, rows[i].means);
        assert_non_null(strstr(e.msg, "start a task: "));
        assert_non_null(strstr(e.msg, rows[i].words));
    }

    static const char conflict[] = "{\"__type\":\"ConflictException\",\"message\":\"x\","
                                   "\"resourceIds\":[\"arn:aws:ecs:r:1:task/c/1\"]}";
    aws_read_refusal(400, conflict, sizeof conflict - 1, &r);
    assert_string_equal(r.resource, "arn:aws:ecs:r:1:task/c/1");
}

static void test_health(void **state)
{
    static const struct {
        const char *body;
        int health; /* -1: none is told */
    } rows[] = {
        {"<TargetHealth><State>healthy</State></TargetHealth>", ELB_HEALTHY},
        {"<State>initial</State><Reason>Elb.InitialHealthChecking</Reason>", ELB_COMING},
        {"<State>unhealthy</State><Description>x &amp; y</Description>", ELB_SICK},
        {"<State>unused</State><Reason>Target.NotInUse</Reason>", ELB_UNUSED},
        {"<State>unused</State><Reason>Target.NotRegistered</Reason>", ELB_GONE},
        {"<State>draining</State>", ELB_GONE},
        {"<State>new word</State>", ELB_COMING},
        {"<State/>", -1},
        {"<State>heal", -1},
        {"", -1},
    };
    enum elb_health h;
    char why[64];
    struct pd_err e;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int r = elb_read_health(rows[i].body, strlen(rows[i].body), &h, why, sizeof why, &e);
        assert_int_equal(r, rows[i].health < 0 ? -1 : 0);
        if (r == 0)
            assert_int_equal(h, rows[i].health);
        if (rows[i].health == ELB_SICK)
            assert_string_equal(why, "x & y");
    }
}

static void test_texts_of_xml(void **state)
{
    static const char xml[] = "<a><Code><b/></Code><Code>one</Code><Code>two&bad;</Code></a>";
    char text[8];

    (void)state;
    size_t at = xml_text(xml, sizeof xml - 1, "Code", text, sizeof text);
    assert_string_equal(text, "one");
    assert_true(xml_text(xml + at, sizeof xml - 1 - at, "Code", text, sizeof text) > 0);
    assert_string_equal(text, "two&bad"); /* cut off: it is too long */
    assert_int_equal(xml_text(xml, sizeof xml - 1, "None", text, sizeof text), 0);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profiles),
        cmocka_unit_test(test_keys_that_are_none_are_told_without_them),
        cmocka_unit_test(test_endpoints_of_keys),
        cmocka_unit_test(test_where_keys_are_asked_for),
        cmocka_unit_test(test_hosts_and_clocks),
        cmocka_unit_test(test_sizes_of_tasks),
        cmocka_unit_test(test_a_task_is_asked_for),
        cmocka_unit_test(test_other_requests),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_ends_of_tasks),
        cmocka_unit_test(test_addresses_of_tasks),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_texts_of_xml),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
