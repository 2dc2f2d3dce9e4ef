// The driver of Java contexts, on jshell; JDK 11 and later, its own modules only.
//
// How this works: docs/contexts.md ("What a driver speaks") has the lines. A shell has put the requests at descriptor 4 and copies of 1 and
// 2 at 5 and 6, and this source into a file, which is removed at the start. Requests are plain: code, and perhaps variables, which
// Java cannot set and which therefore become system properties. What code prints is told by events, for
// System.out of a JVM cannot be flushed in step with others; what its children write goes to 1 and 2 as it is.

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Constructor;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.zip.CRC32;
import jdk.jshell.EvalException;
import jdk.jshell.ExpressionSnippet;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;

public class Driver {
    static final int EVENTS = 3, REQUESTS = 4, OUTPUT = 5, ERRORS = 6;
    static final int TEXT_MAX = 1 << 20, REMEMBERED = 64;
    static final int SETTLE_MS = 500;   // for an interrupt that is on its way

    static OutputStream events, output, errors;
    static PrintStream out, err;    // the code's
    static JShell shell;
    static String request = "";
    static int seq = 0, count = 0;
    static boolean truncated;
    static volatile boolean running, interrupted;
    static boolean heard;   // an interrupt, since the last cell began; below LOCK
    static final Object LOCK = new Object();    // taken to end a cell, and to stop it

    static FileDescriptor descriptor(int number) throws Exception {
        Constructor<FileDescriptor> make = FileDescriptor.class.getDeclaredConstructor(int.class);
        make.setAccessible(true);
        return make.newInstance(number);
    }

    // ---- events ----

    /** Text as JSON, in ASCII; a lone surrogate is no character and is told as text. */
    static String quote(String text) {
        if (text.length() > TEXT_MAX) {
            truncated = true;
            int half = TEXT_MAX / 2, left = text.length() - 2 * half;
            text = text.substring(0, half) + "\n... " + left + " characters left out ...\n" + text.substring(half + left);
        }
        StringBuilder json = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            boolean paired = Character.isHighSurrogate(c) && i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1))
                || Character.isLowSurrogate(c) && i > 0 && Character.isHighSurrogate(text.charAt(i - 1));
            if (Character.isSurrogate(c) && !paired)
                json.append("\\");
            if (c == '"' || c == '\\')
                json.append('\\').append(c);
            else if (c < 32 || c > 126)
                json.append(String.format("\\u%04x", (int) c));
            else
                json.append(c);
        }
        return json.append('"').toString();
    }

    static synchronized void emit(String type, String fields) {
        try {
            seq++;
            if (!request.isEmpty()) {
                byte[] mark = ("\u001e" + request + " " + seq + "\u001e").getBytes(StandardCharsets.US_ASCII);
                output.write(mark);
                errors.write(mark);
            }
            String id = request.isEmpty() ? "" : ",\"id\":\"" + request + "\"";
            events.write(("{\"type\":\"" + type + "\",\"seq\":" + seq + id + fields + "}\n").getBytes(StandardCharsets.US_ASCII));
        } catch (IOException e) {
            Runtime.getRuntime().halt(1);   // nobody reads it any more
        }
    }

    /** A thread of the code's may print when its cell is over, which is nobody's then. */
    static synchronized void print(String type, String text) {
        if (running && !request.isEmpty())
            emit(type, ",\"text\":" + quote(text));
    }

    static synchronized void setRequest(String id) {
        request = id;
    }

    /** System.out and System.err of the code; between cells, which have no request then, nothing is told. */
    static PrintStream stream(String type) {
        OutputStream told = new OutputStream() {
            @Override
            public void write(int b) {
                write(new byte[] {(byte) b}, 0, 1);
            }

            @Override
            public void write(byte[] data, int from, int n) {
                if (n > 0)
                    print(type, new String(data, from, n, StandardCharsets.UTF_8));
            }
        };
        return new PrintStream(told, true) {};   // of a class of its own println is two pieces, as with the peer
    }

    /** What this process has in memory that is no file's, as a field of an event; nothing where the kernel does not say so. */
    static String memory() {
        try {
            for (String line : Files.readAllLines(Path.of("/proc/self/status")))
                if (line.startsWith("RssAnon:"))
                    return ",\"memory\":" + 1024 * Long.parseLong(line.replaceAll("[^0-9]", ""));
        } catch (IOException | RuntimeException unknown) {
            return "";
        }
        return "";
    }

    // ---- cells ----

    static boolean fail(String name, String value, String trace) {
        emit("error", ",\"name\":" + quote(name) + ",\"value\":" + quote(value) + ",\"traceback\":" + quote(trace));
        return false;
    }

    static boolean failWith(JShellException error) {
        String name = error instanceof EvalException ? ((EvalException) error).getExceptionClassName() : error.getClass().getName();
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        return fail(name.substring(name.lastIndexOf('.') + 1), String.valueOf(error.getMessage()), trace.toString());
    }

    static boolean isExpression(Snippet snippet) {
        return snippet instanceof ExpressionSnippet
            || snippet.kind() == Snippet.Kind.VAR && snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
    }

    /** Runs the snippets of a cell one after the other, until one fails. */
    static boolean run(String code) {
        String rest = code, value = null;
        while (!rest.isBlank()) {
            SourceCodeAnalysis.CompletionInfo next = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            String source = next.source() == null ? rest : next.source();
            value = null;
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null)
                    continue;
                if (interrupted)
                    return fail("Interrupt", "interrupted", "");
                if (event.exception() != null)
                    return failWith(event.exception());
                if (event.status() == Snippet.Status.REJECTED) {
                    StringBuilder why = new StringBuilder();
                    shell.diagnostics(event.snippet()).forEach(d -> why.append(d.getMessage(Locale.ROOT)).append('\n'));
                    return fail("CompilationException", why.toString().trim(), source + "\n" + why);
                }
                if (isExpression(event.snippet()))
                    value = event.value();
            }
            if (interrupted)
                return fail("Interrupt", "interrupted", "");
            rest = next.source() == null ? "" : next.remaining();
        }
        if (value != null && !value.isEmpty() && !value.equals("null"))
            emit("result", ",\"main\":true,\"data\":{\"text/plain\":" + quote(value) + "}");
        return true;
    }

    /** Code may have put anything in the place of its streams; without any, jshell itself fails. */
    static void repairStreams() {
        if (System.out == null)
            System.setOut(out);
        if (System.err == null)
            System.setErr(err);
    }

    static void flush(PrintStream stream) {
        try {
            stream.flush();
        } catch (RuntimeException wrong) {
            return;
        }
    }

    static void cell(String id, String code, Map<String, String> variables) {
        setRequest(id);
        truncated = interrupted = false;
        synchronized (LOCK) {
            heard = false;
        }
        count++;
        Map<String, String> before = new HashMap<>();
        variables.forEach((name, value) -> before.put(name, System.setProperty(name, value)));
        running = true;
        emit("start", ",\"count\":" + count);

        boolean ok = run(code);

        repairStreams();
        flush(System.out);
        flush(System.err);
        before.forEach((name, value) -> {
            if (value == null)
                System.clearProperty(name);
            else
                System.setProperty(name, value);
        });
        synchronized (LOCK) {
            running = false;
        }
        emit("end", ",\"ok\":" + ok + memory() + (truncated ? ",\"truncated\":true" : ""));
        setRequest("");
    }

    /** Below LOCK, so that it is this cell that is stopped. */
    static boolean stopOnce() {
        synchronized (LOCK) {
            if (running && interrupted)
                shell.stop();
            return running && interrupted;
        }
    }

    /** What is still compiled when the interrupt comes is stopped when it runs. */
    static void stopCell() {
        try {
            while (stopOnce())
                Thread.sleep(50);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /** A JVM hears signals in a thread of their own, so an interrupt may come when its cell is over. */
    static void onInterrupt() {
        if (running) {
            interrupted = true;
            new Thread(Driver::stopCell).start();
        }
        synchronized (LOCK) {
            heard = true;
            LOCK.notifyAll();
        }
    }

    /** An interrupt was sent to the cell before: until it has come, so that it does not hit the next one. */
    static void settle() {
        long end = System.nanoTime() + SETTLE_MS * 1_000_000L;
        synchronized (LOCK) {
            try {
                for (long left = SETTLE_MS; !heard && left > 0; left = (end - System.nanoTime()) / 1_000_000)
                    LOCK.wait(left);
            } catch (InterruptedException stopped) {
                return;
            }
        }
    }

    // ---- requests ----

    static String readLine(InputStream in) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int c; (c = in.read()) != '\n'; line.write(c))
            if (c < 0)
                return null;
        return line.toString(StandardCharsets.ISO_8859_1);
    }

    static Map<String, String> variables(byte[] text) {
        Map<String, String> found = new HashMap<>();
        for (String entry : new String(text, StandardCharsets.UTF_8).split("\0"))
            if (entry.indexOf('=') > 0)
                found.put(entry.substring(0, entry.indexOf('=')), entry.substring(entry.indexOf('=') + 1));
        return found;
    }

    /** A request that is damaged, or that was seen before, is left out. */
    static void take(String line, ArrayDeque<String> seen) {
        String[] words = line.split(" ");
        if (words.length < 2 || words.length > 4 || !words[0].matches("[A-Za-z0-9_-]{1,64}") || seen.contains(words[0]))
            return;
        try {
            byte[] code = Base64.getDecoder().decode(words.length > 2 ? words[2] : "");
            CRC32 crc = new CRC32();
            crc.update(code);
            if (crc.getValue() != Long.parseLong(words[1], 16))
                return;
            seen.add(words[0]);
            if (seen.size() > REMEMBERED)
                seen.remove();
            if (words[0].startsWith("settle-")) {
                settle();
                return;
            }
            cell(words[0], new String(code, StandardCharsets.UTF_8),
                variables(Base64.getDecoder().decode(words.length > 3 ? words[3] : "")));
        } catch (IllegalArgumentException damaged) {
            return;
        }
    }

    public static void main(String[] arguments) throws Exception {
        File source = new File(arguments[0]);
        source.delete();
        source.getParentFile().delete();

        events = new FileOutputStream(descriptor(EVENTS));
        output = new FileOutputStream(descriptor(OUTPUT));
        errors = new FileOutputStream(descriptor(ERRORS));
        out = stream("stdout");
        err = stream("stderr");
        System.setOut(out);
        System.setErr(err);
        System.getenv().forEach((name, value) -> System.getProperties().putIfAbsent(name, value));

        shell = JShell.builder().executionEngine("local").build();
        for (String name : new String[] {"java.io", "java.math", "java.net", "java.nio.file", "java.util",
            "java.util.concurrent", "java.util.function", "java.util.regex", "java.util.stream"})
            shell.eval("import " + name + ".*;");
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> onInterrupt());

        emit("ready", ",\"version\":" + quote(System.getProperty("java.version")) + memory());
        InputStream requests = new java.io.BufferedInputStream(new FileInputStream(descriptor(REQUESTS)));
        ArrayDeque<String> seen = new ArrayDeque<>();
        for (String line; (line = readLine(requests)) != null;)
            take(line, seen);
        Runtime.getRuntime().halt(0);
    }
}
