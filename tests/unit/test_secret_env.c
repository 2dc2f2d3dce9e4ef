/* Credentials of the environment: where they are after each step. */
#include "unit.h"

#include "base/fd.h"
#include "base/secret_env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void set_some(void)
{
    setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "se=cret word", 1);
    setenv("AWS_SESSION_TOKEN", "", 1);
    setenv("E2B_API_KEY", "e2b_1234", 1);
    setenv("AWS_REGION", "eu-central-1", 1);
}

static void test_they_leave_the_environment_and_its_memory(void **state)
{
    set_some();
    const char *value = getenv("AWS_SECRET_ACCESS_KEY");
    (void)state;

    auto_fd fd = secret_env_seal();
    assert_true(fd >= 0);
    assert_string_equal(value, "");
    assert_null(getenv("AWS_SECRET_ACCESS_KEY"));
    assert_null(getenv("E2B_API_KEY"));
    assert_string_equal(getenv("AWS_REGION"), "eu-central-1");
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void test_each_backend_gets_its_own(void **state)
{
    set_some();
    auto_fd fd = secret_env_seal();
    (void)state;

    secret_env_unseal(fd, "docker");
    assert_null(getenv("AWS_ACCESS_KEY_ID"));
    assert_null(getenv("E2B_API_KEY"));
    secret_env_unseal(fd, "fargate");
    assert_string_equal(getenv("AWS_ACCESS_KEY_ID"), "AKIAEXAMPLE");
    assert_string_equal(getenv("AWS_SECRET_ACCESS_KEY"), "se=cret word");
    assert_null(getenv("AWS_SESSION_TOKEN"));
    assert_null(getenv("E2B_API_KEY"));

    secret_env_forget();
    secret_env_unseal(fd, "e2b"); /* as often as somebody is started */
    assert_string_equal(getenv("E2B_API_KEY"), "e2b_1234");
    assert_null(getenv("AWS_ACCESS_KEY_ID"));
    secret_env_forget();
}

static void test_without_any_there_is_no_file(void **state)
{
    (void)state;
    secret_env_forget();
    setenv("DAYTONA_API_KEY", "", 1);
    assert_int_equal(secret_env_seal(), -ENODATA);
    assert_null(getenv("DAYTONA_API_KEY"));

    secret_env_unseal(-1, "fargate");
    secret_env_unseal(-ENODATA, "fargate");
    assert_null(getenv("AWS_ACCESS_KEY_ID"));
}

static void test_a_file_that_is_no_list_sets_nothing(void **state)
{
    static const char *const texts[] = {"", "AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID=cut off", "=x",
                                        "PATH=/tmp"};
    (void)state;

    secret_env_forget();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        auto_fd fd = memfd_create("test", MFD_CLOEXEC);
        assert_int_equal(fd_write_all(fd, texts[i], strlen(texts[i])), 0);
        secret_env_unseal(fd, "fargate");
        assert_null(getenv("AWS_ACCESS_KEY_ID"));
    }
    assert_string_not_equal(getenv("PATH"), "/tmp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_leave_the_environment_and_its_memory),
        cmocka_unit_test(test_each_backend_gets_its_own),
        cmocka_unit_test(test_without_any_there_is_no_file),
        cmocka_unit_test(test_a_file_that_is_no_list_sets_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
