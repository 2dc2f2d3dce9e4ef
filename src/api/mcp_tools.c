/* The table of tools, with what a model is told about them. scripts/agent-tools hands a change of
 * it on to the agent in the terminal. */
#include "api/mcp.h"

#include "base/banned.h"

/* clang-format off */
#define SCHEMA(properties, required)                                                               \
    "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]"
#define TAKES(properties, required) SCHEMA(properties, required) ",\"additionalProperties\":false}"
#define GIVES(properties, required) SCHEMA(properties, required) "}"

#define MEMBER(name, type, what)                                                                   \
    "\"" name "\":{\"type\":" type ",\"description\":\"" what "\"}"
#define TEXT(name, what)    MEMBER(name, "\"string\"", what)
#define NUMBER(name, what)  MEMBER(name, "\"number\"", what)
#define WHOLE(name, what)   MEMBER(name, "\"integer\"", what)
#define YES_NO(name, what)  MEMBER(name, "\"boolean\"", what)
/* Not a list of types: some clients know only one. */
#define OR_NULL(name, type, what)                                                                  \
    "\"" name "\":{\"anyOf\":[{\"type\":\"" type "\"},{\"type\":\"null\"}],"                       \
    "\"description\":\"" what "\"}"
#define OBJECTS(name, what) "\"" name "\":{\"type\":\"array\",\"description\":\"" what "\","      \
                            "\"items\":{\"type\":\"object\"}}"

/* Of the arguments, one macro each, so that the table stays readable. */
#define COMMAND TEXT("command", "The command line, for bash. May have several lines")
#define TIMEOUT NUMBER("timeout_s",                                                                \
    "Ends the command after this many seconds. 120 unless given, at most 3600")
#define CWD TEXT("cwd", "Absolute path of the directory to run in. Unless given, the one that "   \
    "the last cd of run_command went to, at first /workspace")
#define LANGUAGE TEXT("language", "What the code is written in: python, javascript, typescript, "   \
    "bash, and others where the sandbox has them")
#define CODE    TEXT("code", "The code, any number of lines")
#define CONTEXT TEXT("context", "A name of your own: code of the same name and language shares "   \
    "its variables, and those of no other. Unless given, the language's own")
#define RESET   YES_NO("reset", "Forget the variables of earlier calls first")
#define CODE_TIMEOUT NUMBER("timeout_s",                                                           \
    "Interrupts the code after this many seconds. 120 unless given, at most 3600")
#define PATH    TEXT("path", "The file: an absolute path, or one below /workspace")
#define CONTENT TEXT("content", "The whole content")
#define WHERE   TEXT("path",                                                                       \
    "The directory: an absolute path, or one below /workspace. /workspace unless given")
#define FIRST   WHOLE("first_line", "The first line to give, counted from 1. 1 unless given")
#define LINES   WHOLE("lines", "How many lines. All unless given")
#define DEPTH   WHOLE("depth", "How many levels of directories, 1 to 16. 1 unless given")
#define OLD     TEXT("old_text", "What to replace, exactly as it is in the file, blanks included")
#define NEW     TEXT("new_text", "The text that takes its place")
#define EVERY   YES_NO("all", "Replace every occurrence. Unless given, there must be exactly one")
#define WANTED  TEXT("pattern", "What to look for")
#define MODE                                                                                       \
    "\"mode\":{\"type\":\"string\",\"enum\":[\"literal\",\"regex\",\"name\"],"                     \
    "\"description\":\"literal (unless given): lines that have this text. regex: lines that "      \
    "match this POSIX extended regular expression. name: files whose name matches this glob, "     \
    "such as *.py\"}"
#define GLOB    TEXT("glob", "Look only into files whose name matches this, such as *.py")
#define PID     WHOLE("pid", "The pid that start_process gave")
#define INPUT   TEXT("input", "Text for its standard input, with the newline if it needs one")
#define WAIT    NUMBER("wait_s", "Wait up to this many seconds for its end. 0 unless given")
#define FROM    TEXT("from", "Give only output that is newer than this: `next` of an earlier "     \
    "check_process. All output unless given")
#define PORT    WHOLE("port", "The port, 1 to 65535")
#define WISHES                                                                                     \
    "\"limits\":{\"type\":\"object\",\"description\":\"What it may use at most. Defaults and "       \
    "ceilings are the server's; an error names the ceiling\",\"properties\":{"                     \
    WHOLE("memory_bytes", "Memory") "," WHOLE("pids", "Processes and threads") ","                 \
    NUMBER("cpu", "Cores, such as 0.5") "," WHOLE("disk_bytes", "Space for files") ","             \
    WHOLE("files", "Number of files") "},\"additionalProperties\":false}"
#define NETWORK                                                                                    \
    "\"network\":{\"type\":\"object\",\"description\":\"A way to the network, by rules, where the "   \
    "server's operator lets sandboxes out. Without it there is none\",\"properties\":{"              \
    "\"allow\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Names such as "   \
    "index.example or *.example.com, maybe with a port\"}," TEXT("mode", "list or open")           \
    "},\"additionalProperties\":true}"
#define IDLE    NUMBER("idle_timeout_s", "Ends the sandbox when it was not used for so long")
#define LIFE    NUMBER("max_life_s", "Ends the sandbox so long after it was made, whatever it does")
#define START_ENV                                                                                  \
    "\"env\":{\"type\":\"object\",\"description\":\"Variables for all commands\","                \
    "\"additionalProperties\":{\"type\":\"string\"}}"
#define START_CWD TEXT("cwd", "Absolute path of the directory where commands begin. /workspace "  \
    "unless given")
#define TEMPLATE TEXT("template", "default, base, restricted, or a template of the server")
#define PROVIDER TEXT("provider", "Who makes it: auto, or one of the server's providers")
#define IMAGE TEXT("image", "What it is made from, such as python:3.12: an OCI image that the server " \
    "has, or fetches first if it may")
#define PULL                                                                                       \
    "\"pull\":{\"type\":\"string\",\"enum\":[\"never\",\"missing\",\"always\"],"                     \
    "\"description\":\"When the image is fetched. Unless given, as the server does it\"}"
#define RUN_MODE TEXT("mode", "What its commands may run in: local (no isolation, where the operator "  \
    "allows it), sandbox, or auto: each command is judged")

/* Of the results. */
#define EXIT    OR_NULL("exit_code", "integer", "null: it still runs, or a signal ended it")
#define SIGNAL  OR_NULL("signal", "string", "The signal that ended it")
#define STOPPED OR_NULL("stopped_by", "string", "What ended it from outside, such as timeout")
#define OUT     TEXT("stdout", "Its output; long output has its middle left out")
#define ERR     TEXT("stderr", "Its error output, likewise")
#define RUNS    YES_NO("running", "It still runs")
#define NEXT    TEXT("next", "For `from` of the next call")
#define ENDED   EXIT "," SIGNAL "," STOPPED "," OUT "," ERR "," RUNS
#define ENDED_NEEDS "\"exit_code\",\"signal\",\"stopped_by\",\"stdout\",\"stderr\",\"running\""
#define FILE_IS TEXT("path", "The file")
#define BYTES   WHOLE("bytes", "Size of the whole file")
#define READ    TEXT("content", "The lines that were asked for")
#define COUNTED WHOLE("lines", "Lines of the whole file")
#define CUT     YES_NO("truncated", "There is more than is given here")
#define CHANGED WHOLE("replacements", "How many")
#define ENTRIES OBJECTS("entries", "name, path, type, size, mode and modified_at of each")
#define MATCHES OBJECTS("matches", "path, line, column and text of each")
#define NEW_PID WHOLE("pid", "For check_process and stop_process")
#define NEW_ID  TEXT("process_id", "Its id")
#define URL     TEXT("url", "The link")
#define EXPIRES TEXT("expires_at", "Until when it works")
#define BOX_ID  TEXT("id", "The sandbox's id")
#define BOX_CWD TEXT("cwd", "Its working directory")
#define LIMITS  MEMBER("limits", "\"object\"", "Memory, processes and so on")
#define RUNNING OBJECTS("processes", "pid and command of each that runs")
#define SHOWN   OBJECTS("results", "What was shown, and the value of the last expression "         \
    "(is_main_result): text, json, data, chart and others of each")
#define RAISED  OR_NULL("error", "object", "name, value and traceback of what ended the code")
#define KEPT    TEXT("state", "kept: variables are as the code left them. restarted: they are gone")
#define WHY     OR_NULL("reason", "string", "Such as timeout, oom or exit")
#define COUNT   OR_NULL("execution_count", "integer", "How many calls its context has had")
#define CODE_ENDS GIVES(OUT "," ERR "," SHOWN "," RAISED "," KEPT "," WHY "," COUNT "," CUT,       \
    "\"stdout\",\"stderr\",\"results\",\"error\",\"state\",\"reason\"")
#define COMMAND_ENDS GIVES(ENDED, ENDED_NEEDS)
#define PROCESS_IS   GIVES(ENDED "," NEXT, ENDED_NEEDS)
/* clang-format on */

#define READS   "{\"readOnlyHint\":true,\"openWorldHint\":false}"
#define CHANGES "{\"readOnlyHint\":false,\"destructiveHint\":true,\"openWorldHint\":false}"
#define ADDS    "{\"readOnlyHint\":false,\"destructiveHint\":false,\"openWorldHint\":false}"

const struct mcp_tool mcp_tools[] = {
    {"run_command", "Run a command",
     "Runs a bash command line in the sandbox, waits for its end and gives its exit code, output "
     "and error output. Output of more than 32 KiB has its middle left out. `cd` and `export` hold "
     "for later calls. Use start_process for servers and whatever else does not end by itself.",
     TAKES(COMMAND "," TIMEOUT "," CWD, "\"command\""), COMMAND_ENDS, CHANGES, mcp_run_command},
    {"run_code", "Run code",
     "Runs code in the sandbox, waits for its end and gives what it wrote, the value of its last "
     "expression, and its plots as pictures. The interpreter stays: variables, functions and "
     "imports of earlier calls are there, and the result says so when they are not (state). In "
     "JavaScript a const of an earlier call cannot be declared again. Output of more than 32 KiB "
     "has its middle left out.",
     TAKES(LANGUAGE "," CODE "," CONTEXT "," RESET "," CODE_TIMEOUT, "\"language\",\"code\""),
     CODE_ENDS, CHANGES, mcp_run_code},
    {"read_file", "Read a file",
     "Gives the text of a file in the sandbox, all of it or some of its lines. More than 128 KiB "
     "is cut, and the result says with which line to go on.",
     TAKES(PATH "," FIRST "," LINES, "\"path\""),
     GIVES(FILE_IS "," READ "," BYTES "," COUNTED "," CUT,
           "\"path\",\"content\",\"bytes\",\"lines\",\"truncated\""),
     READS, mcp_read_file},
    {"write_file", "Write a file",
     "Makes a text file in the sandbox, or replaces its whole content. Directories above it are "
     "made. Use edit_file to change a part of a file.",
     TAKES(PATH "," CONTENT, "\"path\",\"content\""),
     GIVES(FILE_IS "," BYTES, "\"path\",\"bytes\""), CHANGES, mcp_write_file},
    {"edit_file", "Edit a file",
     "Replaces a piece of text in a file of the sandbox. The old text must be in the file exactly "
     "once, unless `all` is set: give enough of the lines around it.",
     TAKES(PATH "," OLD "," NEW "," EVERY, "\"path\",\"old_text\",\"new_text\""),
     GIVES(FILE_IS "," CHANGED, "\"path\",\"replacements\""), CHANGES, mcp_edit_file},
    {"list_files", "List files",
     "Lists a directory of the sandbox, up to 500 entries. Names of directories end with a slash.",
     TAKES(WHERE "," DEPTH, ""), GIVES(ENTRIES "," CUT, "\"entries\",\"truncated\""), READS,
     mcp_list_files},
    {"search_files", "Search files",
     "Searches a directory of the sandbox and all below it for lines with a text or a regular "
     "expression, or for files by name. Gives up to 200 matches as PATH:LINE: TEXT.",
     TAKES(WANTED "," MODE "," WHERE "," GLOB, "\"pattern\""),
     GIVES(MATCHES "," CUT, "\"matches\",\"truncated\""), READS, mcp_search_files},
    {"start_process", "Start a process",
     "Starts a bash command line in the background of the sandbox, such as a server, and gives its "
     "pid at once. See how it does with check_process, end it with stop_process.",
     TAKES(COMMAND "," CWD, "\"command\""), GIVES(NEW_PID "," NEW_ID, "\"pid\",\"process_id\""),
     CHANGES, mcp_start_process},
    {"check_process", "Look at a process",
     "Tells whether a process of start_process still runs and what it has written. Can first write "
     "to its input, and wait for its end.",
     TAKES(PID "," INPUT "," WAIT "," FROM, "\"pid\""), PROCESS_IS, ADDS, mcp_check_process},
    {"stop_process", "Stop a process",
     "Ends a process of start_process with all that it has started, and gives what it has written.",
     TAKES(PID, "\"pid\""), COMMAND_ENDS, CHANGES, mcp_stop_process},
    {"preview_port", "Preview a port",
     "Gives a link for a browser to what listens on a TCP port in the sandbox. Start a server with "
     "start_process first. The link works without a key for an hour.",
     TAKES(PORT, "\"port\""), GIVES(URL "," EXPIRES, "\"url\",\"expires_at\""), ADDS,
     mcp_preview_port},
    {"session_info", "About the sandbox",
     "Tells the sandbox's id, its limits, its working directory, which processes run in it and "
     "when it ends.",
     TAKES("", ""),
     GIVES(BOX_ID "," BOX_CWD "," LIMITS "," RUNNING, "\"id\",\"cwd\",\"limits\",\"processes\""),
     READS, mcp_session_info},
    {"create_sandbox", "Make the sandbox",
     "Makes the sandbox of this session with limits of its own, and tells them. Only needed when "
     "the defaults do not fit, and only before any other tool was used: those make a sandbox with "
     "the defaults if there is none.",
     TAKES(WISHES "," IDLE "," LIFE "," START_ENV "," START_CWD "," TEMPLATE "," PROVIDER "," IMAGE
                  "," PULL "," RUN_MODE "," NETWORK,
           ""),
     GIVES(BOX_ID "," BOX_CWD "," LIMITS "," RUNNING, "\"id\",\"cwd\",\"limits\",\"processes\""),
     ADDS, mcp_create_sandbox, true},
};
const unsigned mcp_tool_count = sizeof mcp_tools / sizeof *mcp_tools;
