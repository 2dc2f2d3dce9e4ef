/* The table. A row is here when its program, with the options of the row, does what its class says
 * and nothing else. An option that runs a program, reads a list of files or writes where no operand
 * says is left out on purpose: sort --compress-program, grep -f of another directory, tar
 * --to-command. Interpreters, make, git status and everything else that runs what it finds in the
 * workspace is not in the table at all. */
#include "router/command_table.h"

#include "base/banned.h"

#include <stddef.h>

#define READ  COMMAND_READS
#define WRITE COMMAND_WRITES
#define NET   COMMAND_NETWORKS
#define PATHS OPERANDS_PATHS
#define TEXTS OPERANDS_TEXTS

static const struct program programs[] = {
    /* Reading. */
    {"cat", READ, PATHS, 0, "AbeEnstTuv", " number show-all number-nonblank squeeze-blank "},
    {"ls", READ, PATHS, 0, "aAbBcCdfFghHiklLmnNopqQrRsStuUvxXZ1w:I:T:",
     " all almost-all color= human-readable recursive reverse size full-time inode directory "
     "group-directories-first sort: time: "},
    {"head", READ, PATHS, 0, "qvzn:c:#", " lines: bytes: quiet verbose "},
    {"tail", READ, PATHS, 0, "fFqvzn:c:s:#", " lines: bytes: follow= retry quiet verbose "},
    {"wc", READ, PATHS, 0, "clLmw", " lines words bytes chars max-line-length "},
    {"stat", READ, PATHS, 0, "fLtc:", " format: printf: dereference terse "},
    {"file", READ, PATHS, OPTIONS_HARM, "bhiLkrsz0", " brief mime mime-type mime-encoding "},
    {"du", READ, PATHS, OPTIONS_HARM,
     "abcDhHklLmsSxd:", " summarize human-readable max-depth: apparent-size all total exclude: "},
    {"df", READ, PATHS, 0, "ahHiklPT", " human-readable "},
    {"tree", READ, PATHS, OPTIONS_HARM, "adfhilpsugDFCL:I:P:", " dirsfirst du "},
    {"diff", READ, PATHS, 0, "abBcdeEiNpqrstuwyU:C:",
     " brief unified= recursive ignore-all-space color= side-by-side new-file "},
    {"cmp", READ, PATHS, 0, "bls", " "},
    {"comm", READ, PATHS, 0, "123", " "},
    {"sort", READ, PATHS, OPTIONS_HARM, "bdfghinMRrsuVzck:t:",
     " key: field-separator: numeric-sort reverse unique version-sort human-numeric-sort "},
    {"uniq", READ, PATHS, SECOND_WRITES, "cdDiuzf:s:w:", " count repeated unique ignore-case "},
    {"cut", READ, PATHS, 0, "nszb:c:d:f:",
     " delimiter: fields: characters: bytes: complement only-delimited output-delimiter: "},
    {"paste", READ, PATHS, 0, "szd:", " delimiters: serial "},
    {"join", READ, PATHS, 0, "ia:e:1:2:j:o:t:v:", " "},
    {"nl", READ, PATHS, 0, "b:s:w:v:n:", " "},
    {"tac", READ, PATHS, 0, "brs:", " "},
    {"rev", READ, PATHS, 0, "", " "},
    {"fold", READ, PATHS, 0, "bsw:", " width: "},
    {"column", READ, PATHS, 0, "tns:c:", " "},
    {"expand", READ, PATHS, 0, "it:", " "},
    {"od", READ, PATHS, 0, "vxcbdoA:j:N:t:", " "},
    {"hexdump", READ, PATHS, OPTIONS_HARM, "Cbcdovxn:s:", " "},
    {"xxd", READ, PATHS, SECOND_WRITES, "bipuEl:c:s:g:", " "},
    {"strings", READ, PATHS, OPTIONS_HARM, "an:t:", " "},
    {"md5sum", READ, PATHS, OPTIONS_HARM, "btz", " "},
    {"sha1sum", READ, PATHS, OPTIONS_HARM, "btz", " "},
    {"sha256sum", READ, PATHS, OPTIONS_HARM, "btz", " "},
    {"sha512sum", READ, PATHS, OPTIONS_HARM, "btz", " "},
    {"cksum", READ, PATHS, OPTIONS_HARM, "", " "},
    {"base64", READ, PATHS, 0, "diw:", " decode ignore-garbage wrap: "},
    {"readlink", READ, PATHS, 0, "femnqsvz", " "},
    {"realpath", READ, PATHS, 0, "emqsz", " "},
    {"basename", READ, TEXTS, 0, "azs:", " "},
    {"dirname", READ, TEXTS, 0, "z", " "},
    {"grep", READ, OPERANDS_SCRIPT, 0, "abcEFGhHiIlLnoPqrRsTuvwxyzZ#m:A:B:C:e:f;",
     " ignore-case recursive line-number include: exclude: exclude-dir: color= colour= count "
     "files-with-matches files-without-match only-matching extended-regexp fixed-strings "
     "perl-regexp word-regexp line-regexp invert-match after-context: before-context: context: "
     "max-count: no-messages with-filename no-filename quiet regexp: file; "},
    {"egrep", READ, OPERANDS_SCRIPT, 0, "chHiIlLnoqrRsvwx#m:A:B:C:e:", " include: exclude: "},
    {"fgrep", READ, OPERANDS_SCRIPT, 0, "chHiIlLnoqrRsvwx#m:A:B:C:e:", " include: exclude: "},
    {"rg", READ, OPERANDS_SCRIPT, OPTIONS_HARM, "icnlsSwvFNHIoUt:g:m:A:B:C:e:",
     " hidden no-ignore glob: type: json count files-with-matches max-count: max-depth: "},
    {"sed", READ, OPERANDS_SCRIPT, OPTIONS_HARM | SCRIPT_RUNS | DASH_I_WRITES, "nErsuzi",
     " quiet silent regexp-extended "},
    {"awk", READ, OPERANDS_SCRIPT, OPTIONS_HARM | SCRIPT_RUNS, "F:v:", " "},
    {"gawk", READ, OPERANDS_SCRIPT, OPTIONS_HARM | SCRIPT_RUNS, "F:v:", " "},
    {"mawk", READ, OPERANDS_SCRIPT, OPTIONS_HARM | SCRIPT_RUNS, "F:v:", " "},
    {"jq", READ, OPERANDS_SCRIPT, OPTIONS_HARM | SCRIPT_RUNS, "rcnsSeMCaj",
     " raw-output compact-output slurp null-input sort-keys "},
    {"tr", READ, TEXTS, 0, "cCdst", " delete squeeze-repeats complement "},

    /* Nothing but text, numbers and what every program may know. */
    {"echo", READ, OPERANDS_ANY, 0, "", " "},
    {"true", READ, OPERANDS_ANY, 0, "", " "},
    {"false", READ, OPERANDS_ANY, 0, "", " "},
    {":", READ, OPERANDS_ANY, 0, "", " "},
    {"test", READ, OPERANDS_ANY, 0, "", " "},
    {"[", READ, OPERANDS_ANY, 0, "", " "},
    {"printf", READ, TEXTS, OPTIONS_HARM, "", " "},
    {"seq", READ, TEXTS, 0, "ws:f:", " "},
    {"expr", READ, OPERANDS_ANY, 0, "", " "},
    {"sleep", READ, TEXTS, 0, "", " "},
    {"yes", READ, TEXTS, 0, "", " "},
    {"exit", READ, TEXTS, 0, "", " "},
    {"return", READ, TEXTS, 0, "", " "},
    {"break", READ, TEXTS, 0, "", " "},
    {"continue", READ, TEXTS, 0, "", " "},
    {"shift", READ, TEXTS, 0, "", " "},
    {"wait", READ, TEXTS, OPTIONS_HARM, "n", " "},
    {"jobs", READ, TEXTS, 0, "lprs", " "},
    {"let", READ, TEXTS, 0, "", " "},
    {"unset", READ, TEXTS, OPTIONS_HARM, "v", " "},
    {"set", READ, TEXTS, OPTIONS_HARM, "eufxo:", " "},
    {"type", READ, TEXTS, 0, "atpP", " "},
    {"which", READ, TEXTS, 0, "a", " "},
    {"pwd", READ, OPERANDS_NONE, 0, "LP", " "},
    {"date", READ, OPERANDS_FORMAT, OPTIONS_HARM, "uRI=d:", " utc iso-8601= date: rfc-3339: "},
    {"whoami", READ, OPERANDS_NONE, 0, "", " "},
    {"id", READ, TEXTS, 0, "gGnru", " "},
    {"uname", READ, OPERANDS_NONE, 0, "amnoprsvi", " "},
    {"hostname", READ, OPERANDS_NONE, 0, "fiIsd", " "},
    {"nproc", READ, OPERANDS_NONE, 0, "", " all "},
    {"arch", READ, OPERANDS_NONE, 0, "", " "},
    {"uptime", READ, OPERANDS_NONE, 0, "ps", " "},
    {"free", READ, OPERANDS_NONE, 0, "bgkmht", " "},
    {"ps", READ, TEXTS, 0, "aAefFlLuxHo:p:C:", " sort: no-headers forest "},
    {"printenv", READ, TEXTS, 0, "0", " "},

    /* Writing. */
    {"mkdir", WRITE, PATHS, 0, "pvm:", " parents verbose mode: "},
    {"touch", WRITE, PATHS, OPTIONS_HARM, "acmd:t:r;", " date: reference; "},
    {"rm", WRITE, PATHS, 0, "rRfivdI", " recursive force verbose "},
    {"rmdir", WRITE, PATHS, 0, "pv", " parents "},
    {"cp", WRITE, PATHS, OPTIONS_HARM, "afirRpuvnLPdHTt;",
     " recursive archive preserve= force no-clobber update= "},
    {"mv", WRITE, PATHS, OPTIONS_HARM, "finuvTt;", " force no-clobber "},
    {"ln", WRITE, PATHS, OPTIONS_HARM, "sfnvrT", " symbolic force "},
    {"tee", WRITE, PATHS, 0, "ai", " append "},
    {"truncate", WRITE, PATHS, OPTIONS_HARM, "cs:r;", " size: reference; "},
    {"chmod", WRITE, OPERANDS_SCRIPT, OPTIONS_HARM, "Rvcf", " recursive "},
    {"tar", WRITE, PATHS, OPTIONS_HARM | BUNDLE_FIRST, "cxtzjJavkpf;C;",
     " create extract list gzip bzip2 xz verbose file; directory; exclude: strip-components: "},
    {"zip", WRITE, PATHS, OPTIONS_HARM, "rqj123456789", " "},
    {"unzip", WRITE, PATHS, OPTIONS_HARM, "lnoqtd;", " "},
    {"gzip", WRITE, PATHS, OPTIONS_HARM, "cdfklnrtv123456789", " decompress keep stdout force "},
    {"gunzip", WRITE, PATHS, OPTIONS_HARM, "cfklnrtv", " keep stdout force "},
    {"split", WRITE, PATHS, OPTIONS_HARM, "da:b:l:n:", " lines: bytes: numeric-suffixes= "},

    /* Other machines. */
    {"curl", NET, OPERANDS_URLS, OPTIONS_HARM | AT_IS_A_FILE, "sSfLkIviOGgjNm:X:H:A:u:d:F:e:o;w:",
     " silent show-error fail location insecure head verbose include request: header: data: "
     "user-agent: output; max-time: connect-timeout: retry: compressed remote-name "},
    {"wget", NET, OPERANDS_URLS, OPTIONS_HARM,
     "qcvNSO;P;T:t:", " quiet continue output-document; directory-prefix; timeout: tries: "},
    {"ping", NET, TEXTS, OPTIONS_HARM, "46nqc:i:W:w:", " "},
    {"dig", NET, TEXTS, OPTIONS_HARM, "46x:t:", " "},
    {"nslookup", NET, TEXTS, OPTIONS_HARM, "", " "},
    {"host", NET, TEXTS, OPTIONS_HARM, "46at:", " "},
    {"traceroute", NET, TEXTS, OPTIONS_HARM, "46n", " "},
    {"nc", NET, TEXTS, OPTIONS_HARM, "46znuvlkw:p:", " "},
    {"ssh", NET, TEXTS, OPTIONS_HARM, "46qTnp:l:", " "},
    {"scp", NET, PATHS, OPTIONS_HARM, "46rpqCP:", " "},
    {"rsync", NET, PATHS, OPTIONS_HARM, "avzrtnP", " "},
};

static const struct manager managers[] = {
    {"pip", "list show freeze check --version", "install uninstall download wheel", ""},
    {"pip3", "list show freeze check --version", "install uninstall download wheel", ""},
    {"pipx", "list --version", "install upgrade uninstall", ""},
    {"uv", "--version", "add sync lock remove", ""},
    {"poetry", "--version", "add install update remove", ""},
    {"conda", "list info --version", "install create update remove", "search"},
    {"apt", "list show --version", "install update upgrade remove purge", "search"},
    {"apt-get", "--version", "install update upgrade dist-upgrade remove purge", ""},
    {"dpkg", "-l -s -L --version", "-i -r", ""},
    {"apk", "info --version", "add del update upgrade", "search"},
    {"dnf", "list --version", "install update upgrade remove", "search"},
    {"yum", "list --version", "install update upgrade remove", "search"},
    {"brew", "list --version", "install upgrade uninstall", "search"},
    {"npm", "ls list --version -v", "install i ci add update uninstall remove", "view search ping"},
    {"pnpm", "ls list --version", "install i add update remove", ""},
    {"yarn", "--version", "install add upgrade remove", ""},
    {"gem", "list --version", "install update uninstall", "search"},
    {"bundle", "--version", "install update add", ""},
    {"composer", "--version", "install require update remove", ""},
    {"cargo", "--version", "install add update fetch", "search"},
    {"go", "version", "install get", ""},
    {"git", "--version version", "", "clone ls-remote"},
    {"node", "--version -v", "", ""},
    {"gcc", "--version", "", ""},
    {"make", "--version", "", ""},
    {"docker", "--version", "", ""},
};

const char find_tests[] = "-name -iname -path -ipath -type -size -mtime -mmin -ctime -cmin -atime "
                          "-amin -newer -maxdepth -mindepth -regex -iregex -perm -user -group "
                          "-links -regextype -printf";
const char find_words[] =
    "-print -print0 -empty -not -a -o -and -or -prune -ls -quit -depth -mount "
    "-xdev -readable -writable -executable ( ) ! -true -false";

const struct program *program_find(const char *name)
{
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!strcmp(programs[i].name, name))
            return &programs[i];
    return NULL;
}

const struct manager *manager_find(const char *name)
{
    for (size_t i = 0; i < sizeof managers / sizeof *managers; i++)
        if (!strcmp(managers[i].name, name))
            return &managers[i];
    return NULL;
}
