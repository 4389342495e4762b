// SPDX-License-Identifier: Apache-2.0
// The limit of a load: reads whole files into one fresh anonymous arena, and does nothing else. No project code.
//
// The time runs from before the arena is mapped until the last byte has arrived. The page cache is the caller's to
// prepare. Prints one JSON object. Usage: load_limit [--option value ...] FILE...
//   --engine uring|pread     io_uring, one ring a thread; or blocking pread
//   --threads N              threads that read
//   --depth N                requests in flight per ring
//   --block BYTES            length of one request
//   --direct 0|1             O_DIRECT, or through the page cache
//   --async 0|1              IOSQE_ASYNC: the kernel's workers do buffered reads
//   --prefault none|first|ahead|inline
//                            the reads fault the memory in; all of it first; helpers run ahead of the reads;
//                            each thread populates what it reads next
//   --helpers N, --step BYTES  prefaulting threads, and how much each populates at a time
//   --window BYTES           how far the helpers may run ahead of the reads (0: no limit)
//   --pages thp|hugetlb|small|map-populate
//   --repeat N               loads again into the same arena; each is timed
//   --sum 1                  prints the sum of all 64-bit words, outside the time
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace {

constexpr uint64_t kHuge = 2u << 20;
constexpr uint64_t kSector = 4096;

[[noreturn]] void die(const char* what, int error) {
  fprintf(stderr, "load_limit: %s: %s\n", what, strerror(error));
  exit(1);
}

uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Options {
  std::map<std::string, std::string> text = {
      {"engine", "uring"}, {"threads", "1"},       {"depth", "8"},   {"block", "4194304"}, {"direct", "1"},
      {"async", "0"},      {"prefault", "inline"}, {"helpers", "2"}, {"step", "16777216"}, {"window", "0"},
      {"pages", "thp"},    {"repeat", "1"},        {"sum", "0"}};
  std::vector<std::string> files;
  const std::string& str(const char* name) const { return text.at(name); }
  uint64_t num(const char* name) const { return strtoull(text.at(name).c_str(), nullptr, 0); }
};

struct File {
  int fd;
  uint64_t bytes;
  uint64_t at;  // in the arena
};

struct Block {
  int fd;
  uint64_t offset;
  uint64_t length;
  uint64_t at;
};

struct Load {
  explicit Load(const Options& o)
      : engine(o.str("engine")),
        prefault(o.str("prefault")),
        pages(o.str("pages")),
        threads(o.num("threads")),
        depth(o.num("depth")),
        block(o.num("block")),
        direct(o.num("direct") != 0),
        async(o.num("async") != 0),
        helpers(o.num("helpers")),
        step(o.num("step")),
        window(o.num("window")) {}
  std::string engine, prefault, pages;
  uint64_t threads, depth, block;
  bool direct, async;
  uint64_t helpers, step, window;

  std::vector<File> files;
  std::vector<Block> blocks;
  char* arena = nullptr;
  uint64_t arena_bytes = 0, file_bytes = 0;

  std::atomic<uint64_t> next_block{0}, next_step{0}, blocks_done{0};
  std::vector<std::atomic<uint32_t>> step_ready;
  std::vector<int> wake;  // an eventfd for each ring: a step has become ready
  double touch_seconds = 0;
};

void map_arena(Load& load) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const int extra = load.pages == "hugetlb" ? MAP_HUGETLB : 0;
  const uint64_t slack = extra ? 0 : kHuge;
  void* base = mmap(nullptr, load.arena_bytes + slack, PROT_READ | PROT_WRITE, flags | extra, -1, 0);
  if (base == MAP_FAILED) die("mmap", errno);
  const uintptr_t address = reinterpret_cast<uintptr_t>(base);
  load.arena = static_cast<char*>(base) + (round_up(address, kHuge) - address);
  if (load.pages == "map-populate") {
    if (mmap(load.arena, load.arena_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_POPULATE, -1, 0) ==
        MAP_FAILED)
      die("mmap populate", errno);
  } else if (load.pages != "hugetlb") {
    const int advice = load.pages == "small" ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    if (madvise(load.arena, load.arena_bytes, advice) != 0) die("madvise", errno);
  }
}

void open_files(Load& load, const std::vector<std::string>& paths) {
  for (const auto& path : paths) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | (load.direct ? O_DIRECT : 0));
    if (fd < 0) die(path.c_str(), errno);
    struct stat st = {};
    if (fstat(fd, &st) != 0) die(path.c_str(), errno);
    load.files.push_back({fd, static_cast<uint64_t>(st.st_size), load.arena_bytes});
    load.file_bytes += static_cast<uint64_t>(st.st_size);
    load.arena_bytes += round_up(static_cast<uint64_t>(st.st_size), kHuge);
  }
  for (const auto& file : load.files)
    for (uint64_t offset = 0; offset < file.bytes; offset += load.block)
      load.blocks.push_back({file.fd, offset, std::min(load.block, file.bytes - offset), file.at + offset});
}

void populate(const Load& load, uint64_t at, uint64_t length) {
  length = std::min(length, load.arena_bytes - at);
  while (madvise(load.arena + at, length, MADV_POPULATE_WRITE) != 0)
    if (errno != EINTR && errno != EAGAIN) die("MADV_POPULATE_WRITE", errno);
}

void prefault_steps(Load& load) {
  const uint64_t steps = load.step_ready.size();
  for (;;) {
    const uint64_t step = load.next_step.fetch_add(1);
    if (step >= steps) return;
    if (load.window != 0)  // stay at most a window ahead of what has arrived
      for (uint64_t done = 0; step * load.step > (done = load.blocks_done.load()) * load.block + load.window;)
        load.blocks_done.wait(done);
    populate(load, step * load.step, load.step);
    load.step_ready[step].store(1);
    load.step_ready[step].notify_all();
    for (int fd : load.wake) eventfd_write(fd, 1);
  }
}

bool is_ready(Load& load, const Block& block) {
  if (load.prefault != "ahead") return true;
  for (uint64_t s = block.at / load.step; s <= (block.at + block.length - 1) / load.step; ++s)
    if (load.step_ready[s].load() == 0) return false;
  return true;
}

// A block shorter than a huge page populates the whole page at its first touch; the populating calls after it find it
// there.
void populate_inline(const Load& load, const Block& block) {
  if (load.prefault == "inline") populate(load, block.at / kSector * kSector, round_up(block.length, kSector));
}

void finish_block(Load& load) {
  load.blocks_done.fetch_add(1);
  if (load.window != 0) load.blocks_done.notify_all();
}

void read_rest(Load& load, const Block& block, uint64_t have) {
  while (have < block.length) {
    const uint64_t ask = load.direct ? round_up(block.length - have, kSector) : block.length - have;
    const ssize_t n = pread(block.fd, load.arena + block.at + have, ask, static_cast<off_t>(block.offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) die("pread", n < 0 ? errno : EIO);
    have += static_cast<uint64_t>(n);
  }
}

void run_pread(Load& load) {
  for (uint64_t i = 0; (i = load.next_block.fetch_add(1)) < load.blocks.size();) {
    const Block& block = load.blocks[i];
    if (load.prefault == "ahead")
      for (uint64_t s = block.at / load.step; s <= (block.at + block.length - 1) / load.step; ++s)
        load.step_ready[s].wait(0);
    populate_inline(load, block);
    read_rest(load, block, 0);
    finish_block(load);
  }
}

constexpr uint64_t kWakeTag = ~0ull;

struct Ring {
  io_uring ring = {};
  uint64_t in_flight = 0;
  uint64_t wake_value = 0;
  bool wake_armed = false;
};

void submit_block(Load& load, Ring& ring, uint64_t index) {
  const Block& block = load.blocks[index];
  populate_inline(load, block);
  io_uring_sqe* sqe = io_uring_get_sqe(&ring.ring);
  const uint64_t ask = load.direct ? round_up(block.length, kSector) : block.length;
  io_uring_prep_read(sqe, block.fd, load.arena + block.at, static_cast<unsigned>(ask), block.offset);
  io_uring_sqe_set_data64(sqe, index);
  if (load.async) io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
  ++ring.in_flight;
}

void reap(Load& load, Ring& ring) {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring.ring, &cqe) == 0) {
    const uint64_t tag = io_uring_cqe_get_data64(cqe);
    const int res = cqe->res;
    io_uring_cqe_seen(&ring.ring, cqe);
    if (tag == kWakeTag) {
      ring.wake_armed = false;
      continue;
    }
    if (res < 0) die("io_uring read", -res);
    read_rest(load, load.blocks[tag], static_cast<uint64_t>(res));
    finish_block(load);
    --ring.in_flight;
  }
}

void run_uring(Load& load, uint64_t self) {
  Ring ring;
  io_uring_params params = {};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  int rc = io_uring_queue_init_params(static_cast<unsigned>(load.depth + 1), &ring.ring, &params);
  if (rc < 0) die("io_uring_queue_init", -rc);
  uint64_t index = load.next_block.fetch_add(1);
  while (index < load.blocks.size() || ring.in_flight > 0) {
    while (index < load.blocks.size() && ring.in_flight < load.depth && is_ready(load, load.blocks[index])) {
      submit_block(load, ring, index);
      if (load.prefault == "inline") io_uring_submit(&ring.ring);  // the device works while the next is populated
      index = load.next_block.fetch_add(1);
    }
    const bool starved = index < load.blocks.size() && ring.in_flight < load.depth;
    if (starved && !ring.wake_armed) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring.ring);
      io_uring_prep_read(sqe, load.wake[self], &ring.wake_value, sizeof ring.wake_value, 0);
      io_uring_sqe_set_data64(sqe, kWakeTag);
      ring.wake_armed = true;
    }
    rc = io_uring_submit_and_wait(&ring.ring, 1);
    if (rc < 0 && rc != -EINTR) die("io_uring_submit_and_wait", -rc);
    reap(load, ring);
  }
  io_uring_queue_exit(&ring.ring);
}

template <class Body>
void on_threads(uint64_t count, std::vector<std::thread>& threads, Body body) {
  for (uint64_t i = 0; i < count; ++i) threads.emplace_back([=] { body(i); });
}

void join(std::vector<std::thread>& threads) {
  for (auto& thread : threads) thread.join();
  threads.clear();
}

void run_once(Load& load) {
  load.next_block = load.next_step = load.blocks_done = 0;
  std::vector<std::thread> helpers, readers;
  load.step_ready = std::vector<std::atomic<uint32_t>>((load.arena_bytes + load.step - 1) / load.step);
  for (uint64_t i = 0; i < load.threads; ++i) load.wake.push_back(eventfd(0, EFD_CLOEXEC));
  const double start = now();
  if (load.prefault == "first" || load.prefault == "ahead")
    on_threads(load.helpers, helpers, [&load](uint64_t) { prefault_steps(load); });
  if (load.prefault == "first") {
    join(helpers);
    load.touch_seconds = now() - start;
  }
  on_threads(load.threads, readers,
             [&load](uint64_t i) { load.engine == "uring" ? run_uring(load, i) : run_pread(load); });
  join(readers);
  join(helpers);
  for (int fd : load.wake) close(fd);
  load.wake.clear();
}

uint64_t sum_words(const Load& load) {
  uint64_t sum = 0;
  for (const auto& file : load.files)
    for (uint64_t i = 0; i + 8 <= file.bytes; i += 8) {
      uint64_t word = 0;
      memcpy(&word, load.arena + file.at + i, 8);
      sum += word;
    }
  return sum;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--", 0) != 0) {
      options.files.push_back(arg);
    } else if (options.text.count(arg.substr(2)) == 0 || i + 1 == argc) {
      fprintf(stderr, "load_limit: unknown option or no value: %s\n", arg.c_str());
      exit(2);
    } else {
      options.text[arg.substr(2)] = argv[++i];
    }
  }
  if (options.files.empty() || options.num("threads") == 0 || options.num("depth") == 0 || options.num("step") == 0 ||
      options.num("block") == 0 || options.num("block") % kSector != 0) {
    fprintf(stderr, "usage: load_limit [--option value ...] FILE...\n");
    exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Load load(options);
  std::vector<double> seconds;
  for (uint64_t i = 0; i < std::max<uint64_t>(1, options.num("repeat")); ++i) {
    const double start = now();
    if (i == 0) {
      open_files(load, options.files);
      map_arena(load);
    }
    run_once(load);
    seconds.push_back(now() - start);
  }
  printf("{\"bytes\": %llu, \"seconds\": %.6f, ", static_cast<unsigned long long>(load.file_bytes), seconds[0]);
  printf("\"gib_per_s\": %.3f, \"touch_seconds\": %.6f, \"all_seconds\": [",
         static_cast<double>(load.file_bytes) / seconds[0] / (1u << 30), load.touch_seconds);
  for (size_t i = 0; i < seconds.size(); ++i) printf("%s%.6f", i ? ", " : "", seconds[i]);
  printf("], \"strategy\": \"%s-%s\"", load.engine.c_str(), load.prefault.c_str());
  for (const char* name : {"engine", "prefault", "pages"}) printf(", \"%s\": \"%s\"", name, options.str(name).c_str());
  for (const char* name : {"threads", "depth", "block", "direct", "async", "helpers", "step", "window"})
    printf(", \"%s\": %llu", name, static_cast<unsigned long long>(options.num(name)));
  if (options.num("sum") != 0) printf(", \"sum\": \"%016llx\"", static_cast<unsigned long long>(sum_words(load)));
  printf("}\n");
  return 0;
}
