#include "unit.h"

#include "base/buf.h"
#include "base/err.h"
#include "policy/policy.h"
#include "policy/shell_commands.h"
#include "policy/shell_words.h"

#include <string.h>
#include <time.h>

/* What is found in a line, in order: `*name` only runs what follows, `&name` is a function of the
 * line, `?name` is mentioned to a launcher. A row that starts with `!` is refused with that text in
 * the message. */
static const struct {
    const char *line, *found;
} vectors[] = {
    /* Nothing at all. */
    {"", ""},
    {"  \t ", ""},
    {"\n\n", ""},
    {"# rm", ""},
    {"A=1", ""},
    {"> file", ""},
    {"A=1 B=2 > x", ""},
    /* Lists and pipes. */
    {"ls", "ls"},
    {"ls -l /tmp", "ls"},
    {"ls;rm", "ls rm"},
    {"ls; rm;", "ls rm"},
    {"ls & rm", "ls rm"},
    {"ls&", "ls"},
    {"ls && rm || mv", "ls rm mv"},
    {"ls | wc -l", "ls wc"},
    {"ls |& wc", "ls wc"},
    {"ls|\n\nwc", "ls wc"},
    {"a &&\n# b\nc", "a c"},
    {"ls\nrm", "ls rm"},
    {"ls # rm", "ls"},
    {"ls #rm\nmv", "ls mv"},
    {"ls a#b; c", "ls c"},
    {"ls \\# x", "ls"},
    {"! ls", "ls"},
    {"! ! ls | wc", "ls wc"},
    {"time ls", "ls"},
    {"time -p -- ls | wc", "ls wc"},
    {"time", ""},
    {"! time ls", "ls"},
    {"time -x ls", "-x"},
    /* Grouping. */
    {"(ls)", "ls"},
    {"(ls; rm) | wc", "ls rm wc"},
    {"( (ls) )", "ls"},
    {"{ ls; rm; }", "ls rm"},
    {"{ ls; } > x 2>&1", "ls"},
    {"{ls; }", "!unexpected"},
    {"!(rm)", "rm"},
    {"! { rm; }", "rm"},
    /* Conditions and loops. */
    {"if a; then b; fi", "a b"},
    {"if a; then b; else c; fi", "a b c"},
    {"if a; then b; elif c; then d; else e; fi; f", "a b c d e f"},
    {"if (a) then b; fi", "a b"},
    {"if ! a\nthen\nb\nfi", "a b"},
    {"while a; do b; done", "a b"},
    {"until a; do b; done < x", "a b"},
    {"while a; b; do c; done | d", "a b c d"},
    {"for i in a b c; do rm $i; done", "rm"},
    {"for i in $(seq 3); do echo $i; done", "seq echo"},
    {"for i; do ls; done", "ls"},
    {"for i do ls; done", "ls"},
    {"for i\nin a\ndo ls\ndone", "ls"},
    {"for i in; do ls; done", "ls"},
    {"for i in a do b; do ls; done", "ls"},
    {"for i in a; { ls; }", "ls"},
    {"for ((i=0; i<3; i++)); do ls; done", "ls"},
    {"for ((i=$(a); i<3; i++)) do ls; done", "a ls"},
    {"for ((;;)) { ls; }", "ls"},
    {"select x in a b; do rm $x; done", "rm"},
    {"case $x in a) ls;; b|c) rm;; esac", "ls rm"},
    {"case x in (a) ls; ;; (*) rm; esac; mv", "ls rm mv"},
    {"case $(a) in $(b)) c;; esac", "a b c"},
    {"case x in a) b;& c) d;;& e) f; esac", "b d f"},
    {"case x in esac; ls", "ls"},
    {"case x\nin\n\na)\nls\n;;\nesac", "ls"},
    {"case rm in rm) rm;; esac", "rm"},
    {"case x in if) then;; esac", "!unexpected 'then'"},
    {"[[ a == b ]] && ls", "ls"},
    {"[[ -f $(rm) || x =~ (a|b)$ ]]; ls", "rm ls"},
    {"[[ ( a ) && ! b < c ]] ; ls", "ls"},
    {"[[ a == \"]]\" ]]; rm", "rm"},
    {"[[ a\n&& b ]]; rm", "rm"},
    {"[[ a # ]]", "!comment"},
    {"[[ a", "!not closed"},
    {"(( x = 1 + 2 )); ls", "ls"},
    {"(( x[$(rm)] )) && ls", "rm ls"},
    {"((ls); rm)", "!not arithmetic"},
    {"(( a['x'] ))", "!quote"},
    {"coproc rm", "!coproc"},
    /* Functions. */
    {"f() { rm; }", "rm"},
    {"f() { rm; }; f", "rm &f"},
    {"f () ( rm )\nf x | f", "rm &f &f"},
    {"function f { ls; }; f", "ls &f"},
    {"function f() { ls; }; f", "ls &f"},
    {"f() { f; }; f", "&f &f"},
    {"f() { g; }; g() { ls; }; f", "g ls &f"},
    {"(f() { :; }); f", ": f"},
    {"(f() { :; }; f)", ": &f"},
    {"f() { :; } & f", ": f"},
    {"f() { :; } | f", ": f"},
    {"a || f() { :; }; f", "a : f"},
    {"if a; then f() { :; }; fi; f", "a : f"},
    {"f() { :; }; command f; env f", ": *command f *env f"},
    {"f() { :; }; unset f; f", "!taken back"},
    {"f() { :; }; unset -f f; f", "!taken back"},
    {"f() { :; }; bash -c f", ": *bash f"},
    {"f() { :; }; eval f", ": *eval &f"},
    {"f() { :; }; echo $(f)", ": &f echo"},
    {"f() ls", "!no body"},
    {"ls ()", "!no body"},
    /* Substitutions. */
    {"echo $(rm)", "rm echo"},
    {"echo \"$(rm)\"", "rm echo"},
    {"echo '$(rm)'", "echo"},
    {"echo \\$(rm)", "!unexpected '('"},
    {"echo \"\\$(rm)\"", "echo"},
    {"echo `rm`", "rm echo"},
    {"echo \"`rm`\"", "rm echo"},
    {"echo `echo \\`rm\\``", "rm echo echo"},
    {"echo \"`echo \\\"$(rm)\\\"`\"", "rm echo echo"},
    {"echo '`rm`'", "echo"},
    {"echo $(echo $(echo $(rm)))", "rm echo echo echo"},
    {"echo $(case x in x) rm;; esac)", "rm echo"},
    {"echo $(# comment )\nrm)", "rm echo"},
    {"echo $(<file)", "echo"},
    {"A=$(rm) ls", "rm ls"},
    {"A=\"`rm`\"", "rm"},
    {"> $(rm)", "rm"},
    {"echo ${x:-$(rm)}", "rm echo"},
    {"echo \"${x:-`rm`}\"", "rm echo"},
    {"echo \"${x:-'$(rm)'}\"", "!two ways"},
    {"echo \"${x#'a'}\"; rm", "echo rm"},
    {"echo ${x:-'$(rm)'}; ls", "echo ls"},
    {"echo ${x#\"}\"}; ls", "echo ls"},
    {"echo ${#x} ${x/a/b} ${x^^} $# $? $$ $! $- $0 $1; ls", "echo ls"},
    {"echo ${a[$(rm)]}", "rm echo"},
    {"echo ${x@P}", "!runs what is in a variable"},
    {"echo ${ rm; }", "!inside ${"},
    {"echo $((1 + $(rm)))", "rm echo"},
    {"echo $(( (1) + (2) )); ls", "echo ls"},
    {"echo $((rm); ls)", "!not arithmetic"},
    {"echo $( (rm); ls)", "rm ls echo"},
    {"echo $[1+1]", "!write $(("},
    {"diff <(a) <(b | c)", "a b c diff"},
    {"tee >(a) < <(b)", "a b tee"},
    {"\"<(a)\"", "<(a)"},
    {"a=(1 $(rm) \"$(mv)\" # x\n3); ls", "rm mv ls"},
    {"a+=(x); declare -a b=($(rm))", "rm declare"},
    {"a[$(rm)]=1", "rm"},
    {"a[0]=1 ls", "ls"},
    {"a=(1)[ rm", "!behind its bracket"},
    {"a=(1)b rm", "!behind its bracket"},
    {"a=(1)<(ls) rm", "!behind its bracket"},
    {"a=(1) rm", "rm"},
    {"a[x y]=1 rm", "!literal"},
    {"A+=1 ls", "ls"},
    {"1A=2 ls", "1A=2"},
    {"A\\=1 ls", "A=1"},
    /* Redirections. */
    {"< in ls > out 2>&1 >> x <> y", "ls"},
    {"2> x ls", "ls"},
    {"2>x 3<&- ls 4>&-", "ls"},
    {"{fd}> x ls", "ls"},
    {"&> x ls", "ls"},
    {"ls &>> x y; rm", "ls rm"},
    {"ls >| x", "ls"},
    {"cat <<< \"$(rm)\"", "rm cat"},
    {"99999999999>x ls", "99999999999"},
    {"ls >", "!to nothing"},
    /* Here-documents. */
    {"cat <<E\nrm\nE\nls", "cat ls"},
    {"cat <<E; mv\nrm\nE\nls", "cat mv ls"},
    {"cat <<E\n$(rm) `mv`\nE\n", "cat rm mv"},
    {"cat <<'E'\n$(rm)\nE\nls", "cat ls"},
    {"cat <<\\E\n$(rm)\nE\nls", "cat ls"},
    {"cat <<\"E F\"\n$(rm)\nE F\nls", "cat ls"},
    {"cat <<-E\n\trm\n\tE\nls", "cat ls"},
    {"cat <<E\nx\\\nE\nrm\nE\nls", "cat ls"},
    {"cat <<'E'\nx\\\nE\nrm", "cat rm"},
    {"cat <<A <<B\na\nA\n$(rm)\nB\nls", "cat rm ls"},
    {"(cat <<E\n$(rm)\nE\n) | ls", "cat rm ls"},
    {"echo $(cat <<E\n$(rm)\nE\n); ls", "cat rm echo ls"},
    {"cat <<E\nrm", "!missing"},
    {"cat <<E $(ls\n)\nE\n", "!behind a here-document"},
    {"cat <<$x\n$x\n", "!plain word"},
    {"if a; then cat <<E\nx\nE\nfi; ls", "a cat ls"},
    /* Quoting. */
    {"'ls'", "ls"},
    {"\"ls\"", "ls"},
    {"l\\s", "ls"},
    {"l's'", "ls"},
    {"l\"\"s", "ls"},
    {"\\rm x", "rm"},
    {"r\\\nm", "rm"},
    {"echo a\\\n; rm", "echo rm"},
    {"$'rm'", "rm"},
    {"$'\\x72\\155'", "rm"},
    {"$'\\u0072m'", "rm"},
    {"$\"rm\"", "rm"},
    {"$'a\\'b'; rm", "a'b rm"},
    {"$'r\\0m'", "!NUL"},
    {"'if' a; 'then'", "if then"},
    {"\\{ ls", "{"},
    {"echo 'a\nb'; rm", "echo rm"},
    {"echo \"a\nb\"; rm", "echo rm"},
    {"echo if then fi { } ! [[ case; rm", "echo rm"},
    {"A=1 if", "if"},
    {"/bin/rm x", "/bin/rm"},
    {"./x", "./x"},
    {"[ a = b ]", "["},
    {"{}", "{}"},
    {"''", ""},
    /* Names that are not literal. */
    {"$x", "!literal"},
    {"\"$x\" a", "!literal"},
    {"$(echo rm) a", "!literal"},
    {"`echo rm`", "!literal"},
    {"r$x", "!literal"},
    {"r?", "!literal"},
    {"/bin/r*", "!literal"},
    {"/bin/[r]m", "!literal"},
    {"~/rm", "!literal"},
    {"{rm,x}", "!literal"},
    {"r{l..n}", "!literal"},
    {"${x}rm", "!literal"},
    {"A=1 $x", "!literal"},
    {"ls | $x", "!literal"},
    {"<(ls)", "!literal"},
    /* Commands that run others. */
    {"env", "*env"},
    {"env rm", "*env rm"},
    {"env -i -u X A=1 B=\"$x\" rm", "*env rm"},
    {"env - rm", "*env rm"},
    {"env -iuX rm", "*env rm"},
    {"env --unset=X --unset Y -- rm", "*env rm"},
    {"/usr/bin/env rm", "*/usr/bin/env rm"},
    {"env A=$x rm", "!quote it"},
    {"env $x rm", "!write it literally"},
    {"env -S 'rm x'", "!option is not known"},
    {"env --uns X rm", "!option is not known"},
    {"env $(a) rm", "!write it literally"},
    {"env env nohup nice rm", "*env *env *nohup *nice rm"},
    {"command rm", "*command rm"},
    {"command -p rm", "*command rm"},
    {"command -v rm", "*command"},
    {"command -- rm", "*command rm"},
    {"builtin cd x", "*builtin cd"},
    {"builtin command rm", "*builtin *command rm"},
    {"exec rm", "*exec rm"},
    {"exec -a x -cl rm", "*exec rm"},
    {"exec > x", "*exec"},
    {"nohup rm &", "*nohup rm"},
    {"nice -n 5 rm", "*nice rm"},
    {"nice -5 rm", "*nice rm"},
    {"nice --adjustment=3 rm", "*nice rm"},
    {"timeout 5 rm", "*timeout rm"},
    {"timeout -k 1 -s KILL 5s rm", "*timeout rm"},
    {"timeout --signal=9 --foreground 5 rm", "*timeout rm"},
    {"timeout $t rm", "!write it literally"},
    {"command time -f %e rm", "*command *time rm"},
    {"\\time -p rm", "*time rm"},
    {"stdbuf -oL rm", "*stdbuf rm"},
    {"stdbuf -o L -e0 rm", "*stdbuf rm"},
    {"setsid -f rm", "*setsid rm"},
    {"sudo rm", "sudo rm"},
    {"sudo -u root -E A=1 rm", "sudo rm"},
    {"busybox rm x", "busybox rm"},
    {"busybox sh -c 'rm x'", "busybox *sh rm"},
    {"chroot / rm", "chroot rm"},
    {"xargs", "*xargs"},
    {"xargs rm", "*xargs rm"},
    {"ls | xargs -0 -n 1 -P4 rm -f", "ls *xargs rm"},
    {"xargs -I {} mv {} x", "*xargs mv"},
    {"xargs -I{} {} x", "!literal"},
    {"xargs -i sh -c 'echo {}'", "!not literal"},
    {"xargs sh -c 'rm \"$@\"' _", "*xargs *sh rm"},
    {"xargs env", "!write it literally"},
    {"xargs nice -n 5", "!literal"},
    {"xargs --max-args=1 --null rm", "*xargs rm"},
    {"xargs --nonsense rm", "!option is not known"},
    {"xargs sh -c", "!write it literally"},
    {"find . -name '*.c'", "find"},
    {"find . -exec rm {} \\;", "find rm"},
    {"find . -exec rm {} +", "find rm"},
    {"find . -execdir a ';' -o -ok b \\; -okdir c {} \\;", "find a b c"},
    {"find . -exec {} \\;", "!literal"},
    {"find . -exec sh -c 'rm $0' {} \\;", "find *sh rm"},
    {"find . -exec sh -c 'echo {}' \\;", "!not literal"},
    {"find . -exec env rm {} \\;", "find *env rm"},
    {"find . -exec echo + {} \\; -exec rm {} +", "find echo rm"},
    {"find $x -name a", "!quote it"},
    {"find \"$x\" -name a -exec ls {} \\;", "find ls"},
    {"find \"$x\" rm -exec ls {} \\;", "!take it for -exec"},
    {"find /a/$x -name b", "!quote it"},
    {"find /a/* -name b", "find"},
    {"find . \"$x\" rm {} \\;", "!take it for -exec"},
    {"find . -newer \"$x\"", "find"},
    {"sh -c 'rm x'", "*sh rm"},
    {"bash -c 'ls | rm'", "*bash ls rm"},
    {"bash -euo pipefail -c 'rm x' a b", "*bash rm"},
    {"bash -lc \"bash -c 'rm x'\"", "*bash *bash rm"},
    {"bash -c - 'rm'", "*bash rm"},
    {"bash -c -e 'rm'", "*bash rm"},
    {"bash --norc -c rm", "*bash rm"},
    {"bash --rcfile x -c ls", "!runs a file"},
    {"bash -c \"rm $x\"", "!not literal"},
    {"bash -c '$0' rm", "!literal"},
    {"bash -c", "*bash"},
    {"bash x.sh", "bash"},
    {"bash", "!from its input"},
    {"ls | sh", "!from its input"},
    {"bash -s x", "!from its input"},
    {"bash $x", "!write it literally"},
    {"sh -c '((rm x))'", "!only bash knows (("},
    {"sh -c '[[ a && rm ]]'", "!only bash knows [["},
    {"sh -c 'ls &> f rm'", "!only bash knows &>"},
    {"bash -c '[[ a && rm ]]'", "*bash"},
    {"eval rm x", "*eval rm"},
    {"eval 'ls;' 'rm x'", "*eval ls rm"},
    {"eval \"$x\"", "!not literal"},
    {"eval 'eval \"eval rm\"'", "*eval *eval *eval rm"},
    {"trap 'rm x' EXIT", "*trap rm"},
    {"trap - EXIT; trap '' INT; trap INT", "*trap *trap *trap"},
    {"trap \"$x\" EXIT", "!not literal"},
    {". file", "."},
    {"source file", "source"},
    {"alias ls=rm", "!another meaning"},
    {"hash -p /bin/rm ls", "!another meaning"},
    {"hash -r", "!another meaning"},
    {"enable -n test", "!another meaning"},
    {"PS4='$(rm)'", "!that variable"},
    {"export BASH_ENV=x", "!that variable"},
    {"env ENV=x sh -c ls", "!that variable"},
    {"for PS4 in a; do ls; done", "!that variable"},
    {"unset 'a[$(rm)]'", "!subscript"},
    {"test -v 'a[$(rm)]'", "!subscript"},
    {"let 'a[$(rm)]'", "!subscript"},
    {"declare 'a[`rm`]=1'", "!subscript"},
    {"mapfile -C rm x", "!callback"},
    {"strace -f rm x", "strace ?-f ?rm ?x"},
    {"watch 'ls; rm'", "watch ?ls ?rm"},
    {"strace $x", "!write it literally"},
    /* What cannot be read. */
    {"'", "!byte 0"},
    {"ls 'a", "!byte 3"},
    {"ls \"a", "!byte 3"},
    {"ls `a", "!not closed"},
    {"ls $(a", "!too early"},
    {"ls ${a", "!not closed"},
    {"(ls", "!too early"},
    {"ls)", "!unexpected ')'"},
    {"ls; }", "!unexpected '}'"},
    {"if a; then b", "!too early"},
    {"if a; fi", "!unexpected 'fi'"},
    {"; ls", "!unexpected ';'"},
    {"ls ;; rm", "!unexpected ';'"},
    {"| ls", "!unexpected '|'"},
    {"ls (a)", "!unexpected '('"},
    {"case x in a ls;; esac", "!does not end with ')'"},
    {"for $x in a; do b; done", "!without a variable"},
    {"for i in a b", "!without 'do'"},
    {"ls \\", "!backslash"},
};

static int note(void *ctx, const struct found *f, struct pd_err *e)
{
    static const char *const marks[] = {"", "*", "&", "?"};
    struct buf *out = ctx;
    (void)e;
    if (f->kind == FOUND_ASSIGNMENT || f->kind == FOUND_REDIRECTION)
        return 0;
    return buf_printf(out, "%s%s%s", out->len ? " " : "", marks[f->kind], f->name);
}

static void test_names_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++) {
        auto_buf out = BUF_INIT(4096);
        struct pd_err e = {.msg = ""};
        const char *want = vectors[i].found;
        int failed = shell_commands(vectors[i].line, note, &out, &e);
        if (want[0] == '!' && (!failed || e.code != PD_POLICY || !strstr(e.msg, want + 1)))
            fail_msg("'%s': wanted '%s', got '%s' and '%s'", vectors[i].line, want, e.msg,
                     buf_cstr(&out));
        if (want[0] != '!' && failed)
            fail_msg("'%s' was refused: %s", vectors[i].line, e.msg);
        if (want[0] != '!' && strcmp(buf_cstr(&out), want) != 0)
            fail_msg("'%s': wanted '%s', found '%s'", vectors[i].line, want, buf_cstr(&out));
    }
}

static int check(const char *policy, const char *line, struct pd_err *e)
{
    auto_policy p = {0};
    *e = (struct pd_err){.msg = ""};
    assert_int_equal(policy_parse(policy, &p, e), 0);
    return policy_check_command(&p, line, e);
}

static void test_the_restricted_list(void **state)
{
    static const char *const good[] = {
        "ls -l | grep x | sort | uniq -c | head -n 3",
        "cat f | jq . | awk '{print $1}' | sed s/a/b/ | cut -c1 | tr a b | wc -l",
        "find . -name '*.py' -exec grep -l x {} +",
        "ls | xargs -n1 cat",
        "cd /tmp && export A=1; [ -f x ] && test 1 || printf '%s' \"$(date)\"",
        "python3 -c 'print(1)'",
        "/bin/ls; /usr/bin/env LANG=C /usr/bin/sort",
        "f() { cat \"$1\"; }; f x",
        "bash -c 'ls | wc -l'",
        "while read -r a; do echo \"$a\"; done < f",
        "timeout 5 python3 x.py",
        "A=1; unset A; local b; set -e; shift; return 1; exit 0; wait; pwd; type ls; :; true",
    };

    static const char *const bad[] = {"rm x",
                                      "ls; mv a b",
                                      "echo $(curl x)",
                                      "find . -exec rm {} \\;",
                                      "xargs dd",
                                      "sudo ls",
                                      "/bin/rm x",
                                      "./ls",
                                      "/workspace/ls",
                                      "/usr/bin/x/../ls",
                                      "$x",
                                      "ls | sh",
                                      "bash x.sh",
                                      ". x",
                                      "source x",
                                      "busybox ls",
                                      "cd() { :; }; sleep 1",
                                      "/bin/cd x",
                                      "strace ls",
                                      "/workspace/env ls",
                                      "mkdir x"};

    struct pd_err e;
    (void)state;

    for (size_t i = 0; i < COUNT(good); i++)
        if (check("restricted", good[i], &e) < 0)
            fail_msg("'%s' was refused: %s", good[i], e.msg);
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (check("restricted", bad[i], &e) == 0)
            fail_msg("'%s' was let through", bad[i]);
        assert_int_equal(e.code, PD_POLICY);
    }
    assert_int_equal(check("restricted", "ls; rm x", &e), -1);
    assert_string_equal(e.msg, "command 'rm' is not allowed by this session's policy (restricted): "
                               "allowed are awk, cat, cut, date, echo, find, grep, head, jq, ls, "
                               "python3, sed, sort, tail, tr, uniq, wc");
}

static void test_lists_of_the_caller(void **state)
{
    static const char deny[] = "{\"mode\":\"deny\",\"commands\":[\"rm\",\"curl\"]}";
    static const char allow[] = "{\"mode\":\"allow\",\"commands\":[\"git\",\"make\"]}";
    struct pd_err e;
    (void)state;

    assert_int_equal(check(deny, "ls; make; ./x; bash x.sh", &e), 0);
    assert_int_equal(check(deny, "ls; /usr/../bin/rm x", &e), -1);
    assert_string_equal(e.msg, "command 'rm' is denied by this session's policy");
    assert_int_equal(check(deny, "./curl x", &e), -1);
    assert_int_equal(check(deny, "$x", &e), -1);
    assert_int_equal(check(deny, "strace -f rm", &e), -1);
    assert_int_equal(check(deny, "env curl", &e), -1);
    assert_int_equal(check(deny, "echo rm", &e), 0);
    assert_int_equal(check(allow, "git log && make -j2", &e), 0);
    assert_int_equal(check(allow, "ls", &e), -1);
    assert_non_null(strstr(e.msg, "'ls' is not allowed by this session's policy: allowed are git, "
                                  "make"));
    assert_int_equal(check("open", "$x `(", &e), 0);
    assert_int_equal(check("", "rm", &e), 0);
}

static void test_argv_is_judged(void **state)
{
    auto_policy p = {0};
    struct pd_err e = {.msg = ""};
    (void)state;

    assert_int_equal(policy_parse("restricted", &p, &e), 0);
    assert_int_equal(policy_check_argv(&p, (const char *[]){"ls", "$x;rm", NULL}, &e), 0);
    assert_int_equal(policy_check_argv(&p, (const char *[]){"rm", NULL}, &e), -1);
    assert_int_equal(policy_check_argv(&p, (const char *[]){"sh", "-c", "ls;rm", NULL}, &e), -1);
    assert_non_null(strstr(e.msg, "'rm'"));
    assert_int_equal(policy_check_argv(&p, (const char *[]){"env", "ls", NULL}, &e), 0);
    assert_int_equal(policy_check_argv(&p, (const char *[]){NULL}, &e), 0);
    assert_int_equal(policy_check_variable(&p, "LANG", &e), 0);
    assert_int_equal(policy_check_variable(&p, "ENVIRONMENT", &e), 0);
    assert_int_equal(policy_check_variable(&p, "BASH_ENV", &e), -1);
    assert_int_equal(policy_check_variable(&p, "BASH_FUNC_ls%%", &e), -1);
    assert_int_equal(policy_check_variable(&(struct policy){0}, "BASH_ENV", &e), 0);
}

static void test_policies_are_parsed(void **state)
{
    static const char *const bad[] = {"closed",
                                      "{",
                                      "{\"mode\":\"deny\"}",
                                      "{\"mode\":\"x\",\"commands\":[]}",
                                      "{\"mode\":\"deny\",\"commands\":[1]}",
                                      "{\"mode\":\"deny\",\"commands\":[\"a b\"]}",
                                      "{\"mode\":\"deny\",\"commands\":[\"/bin/rm\"]}",
                                      "{\"mode\":\"deny\",\"commands\":[\"\"]}",
                                      "{\"mode\":\"deny\",\"commands\":[],\"more\":1}",
                                      "{\"mode\":\"deny\",\"mode\":\"deny\",\"commands\":[]}"};

    static const char *const same[] = {"open", "restricted",
                                       "{\"mode\":\"allow\",\"commands\":[\"a\",\"b\"]}"};
    (void)state;

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct policy p = {.count = 4711};
        struct pd_err e = {.msg = ""};
        if (policy_parse(bad[i], &p, &e) == 0)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
        assert_int_equal(p.count, 4711);
    }

    for (size_t i = 0; i < COUNT(same); i++) {
        auto_policy p = {0};
        auto_buf out = BUF_INIT(1000);
        struct pd_err e;
        assert_int_equal(policy_parse(same[i], &p, &e), 0);
        assert_int_equal(policy_text(&p, &out), 0);
        assert_string_equal(buf_cstr(&out), same[i]);
    }

    struct policy p;
    struct pd_err e;
    const char *names[POLICY_NAMES_MAX + 1];
    for (size_t i = 0; i < COUNT(names); i++)
        names[i] = "x";
    assert_int_equal(policy_set(POLICY_DENY, names, COUNT(names), &p, &e), -1);

    char list[POLICY_NAMES_MAX * 8] = "{\"mode\":\"allow\",\"commands\":[\"first\"";
    for (int i = 0; i < 60; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), ",\"name%d\"", i);
    snprintf(list + strlen(list), sizeof list - strlen(list), "]}");
    assert_int_equal(check(list, "rm", &e), -1);
    assert_non_null(strstr(e.msg, ", ..."));
}

/* A piece repeated until the line is as long as it may be, and closed again or not. */
static void check_long(const char *open, const char *middle, const char *close)
{
    static char line[SHELL_LINE_MAX + 1];
    struct pd_err e = {.msg = ""};
    struct timespec before, after;
    size_t n = (SHELL_LINE_MAX - strlen(middle)) / (strlen(open) + strlen(close)), used = 0;
    for (size_t i = 0; i < n; i++, used += strlen(open))
        memcpy(line + used, open, strlen(open));
    memcpy(line + used, middle, strlen(middle));
    used += strlen(middle);
    for (size_t i = 0; i < n; i++, used += strlen(close))
        memcpy(line + used, close, strlen(close));
    line[used] = 0;

    auto_policy p = {0};
    assert_int_equal(policy_parse("{\"mode\":\"deny\",\"commands\":[\"rm\"]}", &p, &e), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    (void)policy_check_command(&p, line, &e);

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double seconds =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    if (seconds > 2)
        fail_msg("'%s' took %.1f s", open, seconds);
}

static void test_time_and_depth_are_bounded(void **state)
{
    static const char *const pieces[][3] = {{"(", "ls", ")"},
                                            {"$(", "ls", ")"},
                                            {"\"$(", "ls", ")\""},
                                            {"`", "ls", "`"},
                                            {"${x:-", "y", "}"},
                                            {"\"${x:-", "y", "}\""},
                                            {"{ ", "ls", "; }"},
                                            {"if a; then ", "b", "; fi"},
                                            {"env ", "ls", ""},
                                            {"find -exec ", "ls", ""},
                                            {"xargs ", "ls", ""},
                                            {"sh -c ", "ls", ""},
                                            {"eval ", "ls", ""},
                                            {"a(){ :;};", "a", ""},
                                            {"ls;", "", ""},
                                            {"a=(", "", ")"},
                                            {"<(", "ls", ")"},
                                            {"$((", "1", "))"},
                                            {"f() { ", "ls", "; }"},
                                            {"cat <<A;", "\n", "A\n"},
                                            {"find \"$x\" ", "", ""},
                                            {"'", "", ""},
                                            {"\"", "", ""},
                                            {"\\\n", "", ""},
                                            {"{", "", "}"},
                                            {"[[ ", "", "]] "},
                                            {"! ", "ls", ""},
                                            {"a[", "", "]"},
                                            {"case x in a) ", "ls", " ;; esac"}};

    struct pd_err e;
    (void)state;
    for (size_t i = 0; i < COUNT(pieces); i++)
        check_long(pieces[i][0], pieces[i][1], pieces[i][2]);

    /* Every kind of nesting is refused when it is too deep, and taken when it is not. */
    char deep[4096] = "";
    for (int i = 0; i < SHELL_DEPTH_MAX - 2; i++)
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), "(");
    snprintf(deep + strlen(deep), sizeof deep - strlen(deep), "ls");
    for (int i = 0; i < SHELL_DEPTH_MAX - 2; i++)
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), " )");
    (void)check("restricted", deep, &e); /* ((..)) is arithmetic: only that it returns */

    static char large[SHELL_LINE_MAX + 2];
    memset(large, 'a', sizeof large - 1);
    assert_int_equal(check("restricted", large, &e), -1);
    assert_int_equal(e.code, PD_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_found),
        cmocka_unit_test(test_the_restricted_list),
        cmocka_unit_test(test_lists_of_the_caller),
        cmocka_unit_test(test_argv_is_judged),
        cmocka_unit_test(test_policies_are_parsed),
        cmocka_unit_test(test_time_and_depth_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
