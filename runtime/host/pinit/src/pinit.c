/*
 * pinit is PID 1 of every sandbox. It starts one command, hands signals on to
 * it, copies its output to the log, reaps whatever is orphaned, and writes down
 * how the command ended, so that log and outcome are found even when no other
 * process of ours is alive.
 *
 *   pinit init OUTCOME FILTER STATUS LIMIT MAX CMD...   as PID 1
 *   pinit exec FILTER STATUS PROCS CMD...               a further process: no reaping
 *   pinit hold                                          sleeps until standard input ends
 *
 * The words in capitals are descriptor numbers; FILTER and MAX may be "-". FILTER
 * holds an array of struct sock_filter. What LIMIT holds is written to MAX, the
 * cgroup's pids.max, before the command starts; PROCS is the cgroup.procs that a
 * further process joins. Neither is done earlier because who starts us needs more
 * threads than the limit may allow. STATUS receives one line:
 * "ok", or "exec ERRNO" when the command could not be executed, or
 * "fail STEP ERRNO" when pinit itself could not do its work.
 *
 * As PID 1 its standard output is the log file. The command gets a pipe for both
 * standard output and error: programs open /dev/stderr anew, which of a file
 * would need permission and cut it to nothing, and the log is not theirs to
 * change. What does not fit on the disk is dropped. The log keeps at least its
 * newest LOG_KEPT bytes; what is older is given back to the disk by holes, so that
 * the file's size goes on counting and offsets into it keep their meaning.
 *
 * OUTCOME must be opened O_APPEND. Its lines, times in nanoseconds since 1970:
 *   start TIME                        the command was executed
 *   noexec ERRNO TIME                 it could not be
 *   exit CODE SIGNAL OUTSIDE TIME     it ended; SIGNAL is 0 or what ended it,
 *                                     OUTSIDE the last signal that came from
 *                                     outside our PID namespace, 0 for none
 *
 * Signals go on to the command as they come, but for one: signal 64 from outside
 * is the request to kill the command, as SIGKILL would kill us instead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* From linux/filter.h, linux/seccomp.h and linux/bpf_common.h, which musl-gcc
 * does not find. They are kernel ABI. */
#define SECCOMP_MODE_FILTER 2
#define BPF_MAXINSNS 4096

struct sock_filter {
	unsigned short code;
	unsigned char jt, jf;
	unsigned int k;
};

struct sock_fprog {
	unsigned short len;
	struct sock_filter *filter;
};

static int status_fd = -1;

/* A line is put together by hand: stdio would treble the size. */
static char line[192];
static size_t used;

static void put(const char *s)
{
	while (*s && used < sizeof line - 1)
		line[used++] = *s++;
}

static void num(long long n)
{
	char b[24], *p = b + sizeof b;
	unsigned long long u = n < 0 ? 0ULL - (unsigned long long)n : (unsigned long long)n;

	*--p = 0;
	do
		*--p = (char)('0' + u % 10);
	while (u /= 10);
	if (n < 0)
		*--p = '-';
	put(" ");
	put(p);
}

static void now(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_REALTIME, &t);
	num((long long)t.tv_sec * 1000000000LL + t.tv_nsec);
}

static void flush(int fd)
{
	size_t off = 0;

	put("\n");
	while (fd >= 0 && off < used) {
		ssize_t n = write(fd, line + off, used - off);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		off += (size_t)n;
	}
	used = 0;
}

static void fail(const char *step)
{
	int e = errno;

	put("fail ");
	put(step);
	num(e);
	flush(status_fd);
	_exit(125);
}

static int fd_arg(const char *s)
{
	int n = 0;

	if (s[0] == '-')
		return -1;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || n > 65535) {
			errno = EINVAL;
			fail("arguments");
		}
		n = n * 10 + (*s - '0');
	}
	if (fcntl(n, F_SETFD, FD_CLOEXEC) < 0)
		fail("descriptor");
	return n;
}

/* pread, not read: the descriptor's offset is shared between all sandboxes. */
static void install_filter(int fd)
{
	static struct sock_filter code[BPF_MAXINSNS];
	struct sock_fprog prog;
	size_t got = 0;

	if (fd < 0)
		return;
	while (got < sizeof code) {
		ssize_t n = pread(fd, (char *)code + got, sizeof code - got, (off_t)got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("filter read");
		if (n == 0)
			break;
		got += (size_t)n;
	}
	close(fd);
	if (got == 0 || got % sizeof code[0]) {
		errno = EINVAL;
		fail("filter size");
	}
	prog.len = (unsigned short)(got / sizeof code[0]);
	prog.filter = code;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) < 0)
		fail("filter");
}

static void close_on_exec_from(int first)
{
	int fd;

	for (fd = first; fd < 16; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int run_exec(char **argv)
{
	int filter, procs, e;

	status_fd = fd_arg(argv[1]);
	filter = fd_arg(argv[0]);
	procs = fd_arg(argv[2]);
	if (write(procs, "0", 1) != 1) /* ourselves */
		fail("cgroup");
	close(procs);
	install_filter(filter);
	execvp(argv[3], argv + 3);
	e = errno;
	put("exec");
	num(e);
	flush(status_fd);
	_exit(e == ENOENT ? 127 : 126);
}

static void limit_processes(int limit, int max)
{
	char text[32];
	ssize_t n;

	if (max < 0)
		return;
	n = pread(limit, text, sizeof text, 0);
	if (n == 0)
		errno = EINVAL;
	if (n <= 0 || write(max, text, (size_t)n) != n)
		fail("limit");
	close(limit);
	close(max);
}

#define KILL_REQUEST 64

/* Only kill(2) and its kin give SI_USER, and then it is the kernel that fills in
 * the sender: 0 when it has no PID here. Queued signals can claim anything. */
static int from_outside(const struct signalfd_siginfo *si)
{
	return si->ssi_code == SI_USER && si->ssi_pid == 0;
}

/* How much of the log is kept, and how much more may gather before the oldest is
 * given up: punching holes costs a millisecond. */
#define LOG_KEPT (16LL << 20)
#define LOG_SLACK (1LL << 20)

static off_t log_start, log_end; /* where what is kept begins, and the end */
static off_t log_block;          /* holes are whole multiples of it; 0: no bound */

/* measure_log finds what earlier lives of the sandbox have left in the log. */
static void measure_log(void)
{
	struct stat st;

	if (fstat(1, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	log_end = st.st_size;
	log_start = lseek(1, 0, SEEK_DATA);
	if (log_start < 0)
		log_start = errno == ENXIO ? log_end : 0;
	log_block = st.st_blksize > 0 ? st.st_blksize : 4096;
}

/* bound_log gives up the oldest part of the log. Readers skip what is left of the
 * line that is cut. What fails for a moment is tried again at the next write. */
static void bound_log(void)
{
	off_t cut;

	if (!log_block || log_end - log_start <= LOG_KEPT + LOG_SLACK)
		return;
	cut = log_end - LOG_KEPT;
	cut -= cut % log_block;
	if (fallocate(1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, log_start, cut - log_start) == 0)
		log_start = cut;
	else if (errno == EOPNOTSUPP || errno == ENOSYS)
		log_block = 0; /* a file system without holes: no bound */
}

/* copy moves what one read gives from the pipe to the log. 0: nothing came. */
static int copy(int from)
{
	static char buf[16384];
	ssize_t n = read(from, buf, sizeof buf), off = 0;

	if (n <= 0)
		return n < 0 && errno == EINTR;
	while (off < n) {
		ssize_t w = write(1, buf + off, (size_t)(n - off));
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			break;
		off += w;
	}
	log_end += off;
	bound_log();
	return 1;
}

static pid_t child;
static int last; /* the last signal from outside */

/* pass_on takes one signal off the queue. 0: there was none. */
static int pass_on(int signals)
{
	struct signalfd_siginfo si;
	int sig;

	if (read(signals, &si, sizeof si) != sizeof si)
		return errno == EINTR;
	sig = (int)si.ssi_signo;
	if (sig == SIGCHLD)
		return 1;
	if (from_outside(&si)) {
		if (sig == KILL_REQUEST)
			sig = SIGKILL;
		last = sig;
	}
	if (child > 0)
		kill(child, sig);
	return 1;
}

/* reap collects the dead and tells whether the command is among them. */
static int reap(int *status)
{
	int st, ended = 0;
	pid_t p;

	while ((p = waitpid(-1, &st, WNOHANG)) > 0) {
		if (p == child && (WIFEXITED(st) || WIFSIGNALED(st))) {
			*status = st;
			ended = 1;
			child = 0; /* its number may be another's from now on */
		}
	}
	return ended;
}

static int run_init(char **argv)
{
	sigset_t all, none;
	int outcome, filter, limit, max, signals, output[2], st, sig, code, i;
	/* static, so that what vfork's child does cannot touch them in registers */
	static volatile int exec_errno;
	static int out_end;
	static char **command;
	struct pollfd fds[2];

	status_fd = fd_arg(argv[2]);
	outcome = fd_arg(argv[0]);
	filter = fd_arg(argv[1]);
	limit = fd_arg(argv[3]);
	max = fd_arg(argv[4]);
	command = argv + 5;

	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &all, 0);
	signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		fail("signals");
	if (pipe2(output, O_CLOEXEC) < 0)
		fail("pipe");
	out_end = output[1];
	measure_log();
	/* Whoever has the pipe may open it again, under another user too. */
	fchmod(out_end, 0666);
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	limit_processes(limit, max);
	install_filter(filter);

	/* vfork: we run again only once the child has executed or given up, and
	 * its exec_errno is ours. */
	child = vfork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		if (dup2(out_end, 1) >= 0 && dup2(out_end, 2) >= 0) {
			sigprocmask(SIG_SETMASK, &none, 0);
			execvp(command[0], command);
		}
		exec_errno = errno;
		_exit(127);
	}
	if (exec_errno) {
		put("noexec");
		num(exec_errno);
		now();
		flush(outcome);
		put("exec");
		num(exec_errno);
		flush(status_fd);
		_exit(exec_errno == ENOENT ? 127 : 126);
	}
	close(out_end);
	put("start");
	now();
	flush(outcome);
	put("ok");
	flush(status_fd);
	close(status_fd);
	status_fd = -1;

	fds[0].fd = signals;
	fds[1].fd = output[0];
	fds[0].events = fds[1].events = POLLIN;
	for (;;) {
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[1].revents & POLLIN)
			copy(output[0]);
		else if (fds[1].revents)
			fds[1].fd = -1; /* nobody can write to it any more */
		if (!fds[0].revents)
			continue;
		while (pass_on(signals))
			;
		if (reap(&st))
			break;
	}
	/* Signals that came together with the end, and the last output. Others of
	 * the sandbox may go on writing, so there is a limit. */
	while (pass_on(signals))
		;
	for (i = 0; i < 256 && copy(output[0]); i++)
		;
	sig = WIFSIGNALED(st) ? WTERMSIG(st) : 0;
	code = sig ? 128 + sig : WEXITSTATUS(st);
	put("exit");
	num(code);
	num(sig);
	num(last);
	now();
	flush(outcome);
	_exit(code);
}

int main(int argc, char **argv)
{
	char b;

	/* First of all: nobody inside may trace this process or look into it before
	 * the filter is in place and the limits hold. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	close_on_exec_from(3);
	if (argc > 7 && !strcmp(argv[1], "init"))
		return run_init(argv + 2);
	if (argc > 5 && !strcmp(argv[1], "exec"))
		return run_exec(argv + 2);
	if (argc == 2 && !strcmp(argv[1], "hold")) {
		while (read(0, &b, 1) < 0 && errno == EINTR)
			;
		return 0;
	}
	return 125;
}
