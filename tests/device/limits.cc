// SPDX-License-Identifier: Apache-2.0
// What a machine with a GPU can do at best, and how a plain loader does, by the CUDA driver API alone. Shares no code
// with the project, so that it cannot share its mistakes. One JSON document on standard output.
//
// usage: device_limits facts            the driver and GPU 0; "double": the driver is the one of testing/gpu_double
//        device_limits pinned BYTES     that many bytes copied from pinned memory to GPU 0
//        device_limits disk FILE ...    the files read directly into a small ring, and dropped
//        device_limits loop FILE ...    the files read by 16 threads into a pinned buffer of 16 MiB each, and copied
//        from
//                                       there: what fastsafetensors does without GPUDirect Storage
//
// "seconds" is left out where the driver is the double: no figure taken with it is a speed.
#include <dlfcn.h>
#include <fcntl.h>
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
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kBlock = 16 * kMiB;
constexpr std::size_t kDirectBlock = 4 * kMiB;
constexpr unsigned kReaders = 16;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "device_limits: %s\n", what.c_str());
  std::exit(1);
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// X(name as it is exported, parameters)
#define CUDA_CALLS(X)                                                                                 \
  X(cuInit, (unsigned flags))                                                                         \
  X(cuDriverGetVersion, (int* version))                                                               \
  X(cuDeviceGetCount, (int* count))                                                                   \
  X(cuDeviceGet, (int* device, int ordinal))                                                          \
  X(cuDeviceGetName, (char* name, int length, int device))                                            \
  X(cuDeviceTotalMem_v2, (std::size_t * bytes, int device))                                           \
  X(cuDevicePrimaryCtxRetain, (void** context, int device))                                           \
  X(cuCtxPushCurrent_v2, (void* context))                                                             \
  X(cuMemAlloc_v2, (unsigned long long* address, std::size_t bytes))                                  \
  X(cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned flags))                         \
  X(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void* from, std::size_t bytes, void* stream)) \
  X(cuMemcpyDtoHAsync_v2, (void* to, unsigned long long from, std::size_t bytes, void* stream))       \
  X(cuStreamCreate, (void** stream, unsigned flags))                                                  \
  X(cuStreamSynchronize, (void* stream))

struct Cuda {
#define DECLARE(name, parameters) int(*name) parameters = nullptr;
  CUDA_CALLS(DECLARE)
#undef DECLARE
  bool is_double = false;
  int device = 0;
  void* context = nullptr;
  double context_seconds = 0;

  static void check(int result, const char* call) {
    if (result != 0) fail(std::string(call) + " failed with " + std::to_string(result));
  }
  static Cuda load() {
    const char* const named = std::getenv("INFERCLUSTER_LIBCUDA");
    void* const library = ::dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW);
    if (library == nullptr) fail(::dlerror());
    Cuda cuda;
#define FIND(name, parameters)                                                \
  cuda.name = reinterpret_cast<decltype(cuda.name)>(::dlsym(library, #name)); \
  if (cuda.name == nullptr) fail("the driver lacks " #name);
    CUDA_CALLS(FIND)
#undef FIND
    cuda.is_double = ::dlsym(library, "ic_gpu_double_counter") != nullptr;
    check(cuda.cuInit(0), "cuInit");
    check(cuda.cuDeviceGet(&cuda.device, 0), "cuDeviceGet");
    return cuda;
  }
  void make_context() {
    const Stopwatch watch;
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    enter();
    context_seconds = watch.seconds();
  }
  void enter() const {
    check(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
  }
  [[nodiscard]] void* stream() const {
    void* made = nullptr;
    check(cuStreamCreate(&made, 1), "cuStreamCreate");  // non-blocking
    return made;
  }
  [[nodiscard]] unsigned long long allocate(std::size_t bytes) const {
    unsigned long long address = 0;
    check(cuMemAlloc_v2(&address, std::max<std::size_t>(bytes, 1)), "cuMemAlloc");
    return address;
  }
  void copy(unsigned long long to, const char* from, std::size_t bytes, void* on) const {
    check(cuMemcpyHtoDAsync_v2(to, from, bytes, on), "cuMemcpyHtoDAsync");
  }
  void wait(void* on) const {
    check(cuStreamSynchronize(on), "cuStreamSynchronize");
  }
};

// Touched memory in huge pages; stays until the program ends.
char* host_memory(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for a buffer");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<char*>(memory);
}

char* pinned_memory(const Cuda& cuda, std::size_t bytes) {
  char* const memory = host_memory(bytes);
  Cuda::check(cuda.cuMemHostRegister_v2(memory, bytes, 1), "cuMemHostRegister");  // portable
  return memory;
}

struct File {
  std::string path;
  int fd = -1;
  std::size_t bytes = 0;
  unsigned long long address = 0;  // on the device
};

std::vector<File> open_files(const std::vector<std::string>& paths, int flags) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0 && errno == EINVAL) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // no direct I/O here
    struct stat entry {};
    if (fd < 0 || ::fstat(fd, &entry) != 0) fail("cannot open " + path + ": " + std::strerror(errno));
    files.push_back({path, fd, static_cast<std::size_t>(entry.st_size), 0});
  }
  return files;
}

struct Piece {
  const File* file = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

std::vector<Piece> pieces_of(const std::vector<File>& files, std::size_t block) {
  std::vector<Piece> pieces;
  for (const File& file : files) {
    for (std::size_t at = 0; at < file.bytes; at += block) {
      pieces.push_back({&file, at, std::min(block, file.bytes - at)});
    }
  }
  return pieces;
}

void read_piece(const Piece& piece, char* to, std::size_t ask) {
  for (std::size_t done = 0; done < piece.bytes;) {
    const ssize_t got = ::pread(piece.file->fd, to + done, ask - done, static_cast<off_t>(piece.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("cannot read " + piece.file->path + ": " + (got == 0 ? "it is shorter" : std::strerror(errno)));
    done += static_cast<std::size_t>(got);
  }
}

// Each of kReaders threads takes the next piece until none is left.
void in_parallel(const std::vector<Piece>& pieces,
                 const std::function<std::function<void(const Piece&)>()>& make_worker) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kReaders; ++i) {
    threads.emplace_back([&] {
      const auto work = make_worker();
      for (std::size_t at = next++; at < pieces.size(); at = next++) work(pieces[at]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void print(bool is_double, std::size_t bytes, double seconds, double context_seconds) {
  if (is_double) {
    std::printf("{\"double\": true, \"bytes\": %zu}\n", bytes);
    return;
  }
  std::printf("{\"double\": false, \"bytes\": %zu, \"seconds\": %.6f, \"context_seconds\": %.6f}\n", bytes, seconds,
              context_seconds);
}

void facts() {
  const Cuda cuda = Cuda::load();
  int version = 0;
  int count = 0;
  char name[256] = {};
  std::size_t bytes = 0;
  Cuda::check(cuda.cuDriverGetVersion(&version), "cuDriverGetVersion");
  Cuda::check(cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  Cuda::check(cuda.cuDeviceGetName(name, sizeof name - 1, cuda.device), "cuDeviceGetName");
  Cuda::check(cuda.cuDeviceTotalMem_v2(&bytes, cuda.device), "cuDeviceTotalMem");
  std::printf("{\"device\": \"%s\", \"device_bytes\": %zu, \"gpus\": %d, \"cuda\": \"%d.%d\", \"double\": %s}\n", name,
              bytes, count, version / 1000, version % 1000 / 10, cuda.is_double ? "true" : "false");
}

void pinned(std::size_t total) {
  constexpr std::size_t kRing = 8 * kBlock;
  Cuda cuda = Cuda::load();
  cuda.make_context();
  const char* const host = pinned_memory(cuda, kRing);
  const unsigned long long device = cuda.allocate(kRing);
  void* const streams[] = {cuda.stream(), cuda.stream()};
  const auto copy_all = [&](std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kBlock) {
      const std::size_t place = at % kRing;
      cuda.copy(device + place, host + place, std::min(kBlock, bytes - at), streams[at / kBlock % 2]);
    }
    for (void* const on : streams) cuda.wait(on);
  };
  copy_all(std::min(total, kRing));  // the first copies are slower
  const Stopwatch watch;
  copy_all(total);
  print(cuda.is_double, total, watch.seconds(), cuda.context_seconds);
}

void disk(const std::vector<std::string>& paths) {
  const bool is_double = Cuda::load().is_double;
  const auto files = open_files(paths, O_DIRECT);
  const auto pieces = pieces_of(files, kDirectBlock);
  const Stopwatch watch;
  in_parallel(pieces, [] {
    char* const buffer = host_memory(kDirectBlock);
    return [buffer](const Piece& piece) { read_piece(piece, buffer, kDirectBlock); };
  });
  std::size_t bytes = 0;
  for (const File& file : files) bytes += file.bytes;
  print(is_double, bytes, watch.seconds(), 0);
}

// A few places of each file, read again both ways.
void compare(const Cuda& cuda, const std::vector<File>& files) {
  void* const stream = cuda.stream();
  char* const device_copy = pinned_memory(cuda, kMiB);
  char* const host_copy = host_memory(kMiB);
  for (const File& file : files) {
    for (const std::size_t offset : {std::size_t{0}, file.bytes / 2, file.bytes - std::min(kMiB, file.bytes)}) {
      const Piece piece{&file, offset, std::min(kMiB, file.bytes - offset)};
      read_piece(piece, host_copy, piece.bytes);
      Cuda::check(cuda.cuMemcpyDtoHAsync_v2(device_copy, file.address + offset, piece.bytes, stream),
                  "cuMemcpyDtoHAsync");
      cuda.wait(stream);
      if (std::memcmp(host_copy, device_copy, piece.bytes) != 0) fail(file.path + ": wrong bytes on the device");
    }
  }
}

void loop(const std::vector<std::string>& paths) {
  Cuda cuda = Cuda::load();
  cuda.make_context();
  const Stopwatch watch;
  auto files = open_files(paths, 0);
  std::size_t bytes = 0;
  for (File& file : files) {
    file.address = cuda.allocate(file.bytes);
    bytes += file.bytes;
  }
  const auto pieces = pieces_of(files, kBlock);
  in_parallel(pieces, [&cuda] {
    cuda.enter();
    char* const buffer = pinned_memory(cuda, kBlock);
    void* const stream = cuda.stream();
    return [&cuda, buffer, stream](const Piece& piece) {
      read_piece(piece, buffer, piece.bytes);
      cuda.copy(piece.file->address + piece.offset, buffer, piece.bytes, stream);
      cuda.wait(stream);
    };
  });
  const double seconds = watch.seconds();
  compare(cuda, files);
  print(cuda.is_double, bytes, seconds, cuda.context_seconds);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> words(values + std::min(count, 1), values + count);
  const std::string command = words.empty() ? "" : words[0];
  const std::vector<std::string> rest(words.begin() + (words.empty() ? 0 : 1), words.end());
  if (command == "facts" && rest.empty()) {
    facts();
  } else if (command == "pinned" && rest.size() == 1 && std::strtoull(rest[0].c_str(), nullptr, 10) > 0) {
    pinned(std::strtoull(rest[0].c_str(), nullptr, 10));
  } else if (command == "disk" && !rest.empty()) {
    disk(rest);
  } else if (command == "loop" && !rest.empty()) {
    loop(rest);
  } else {
    std::fprintf(stderr, "usage: device_limits facts | pinned BYTES | disk FILE ... | loop FILE ...\n");
    return 2;
  }
  std::fflush(stdout);
  std::_Exit(0);  // nothing is released one by one: the process's end does it
}
