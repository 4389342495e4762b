// SPDX-License-Identifier: Apache-2.0
// A reader that stands still in the middle of a transfer while what it reads is removed and its place used again.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/units.h"
#include "initiator/fault_test_helpers.h"

namespace infercluster::initiator {
namespace {

constexpr std::uint64_t kObjectBytes = 4 * kMiB;

char byte_at(unsigned generation, std::uint64_t offset) {
  return static_cast<char>(generation * 41U + 1U + offset * 7U + offset / 4096U);
}
std::string content_of(unsigned generation) {
  std::string content(kObjectBytes, '\0');
  for (std::uint64_t i = 0; i < content.size(); ++i) content[i] = byte_at(generation, i);
  return content;
}

struct Order {
  os::SocketAddress address;
  std::array<char, 256> nqn{};
  std::uint64_t first_block = 0;
  unsigned generation = 0;  // what its bytes are
  bool digests = false;
  bool end = false;
};
enum class Answer : std::uint8_t { right, gone, other_error, wrong_bytes };

// Carries out orders: connects, says so, reads the object over and over until it is gone, and says what it found.
int read_by_order(int orders, int answers) {
  Order order;
  while (::read(orders, &order, sizeof(order)) == sizeof(order) && !order.end) {
    HostOptions options;
    options.digests = {.header = order.digests, .data = order.digests};
    options.silence_max = std::chrono::milliseconds(200);
    auto host = Host::connect({.address = order.address, .nqn = order.nqn.data(), .nsid = 1}, options);
    Answer answer = Answer::other_error;
    if (!host.ok() && ::write(answers, &answer, 1) != 1) return 1;
    std::vector<std::byte> bytes(kObjectBytes);
    for (bool reading = host.ok(); reading;) {
      std::fill(bytes.begin(), bytes.end(), std::byte{0xA5});
      const Status read = (*host)->read(order.first_block * target::kBlockBytes, bytes);
      answer = Answer::right;
      if (!read.ok()) {
        answer = read.error().code() == ErrorCode::not_found ? Answer::gone : Answer::other_error;
      } else {
        for (std::uint64_t i = 0; i < bytes.size(); ++i) {
          if (bytes[i] != static_cast<std::byte>(byte_at(order.generation, i))) answer = Answer::wrong_bytes;
        }
      }
      reading = answer == Answer::right;
      if (::write(answers, &answer, 1) != 1) return 1;
    }
  }
  return 0;
}

TEST(StoppedReader, GetsItsObjectsBytesOrIsToldThatItIsGone) {
  std::array<int, 2> orders{};
  std::array<int, 2> answers{};
  ASSERT_EQ(::pipe(orders.data()), 0);
  ASSERT_EQ(::pipe(answers.data()), 0);
  const pid_t reader = ::fork();  // before there are threads here
  ASSERT_GE(reader, 0);
  if (reader == 0) {
    ::close(orders[1]);
    ::_exit(read_by_order(orders[0], answers[1]));
  }
  ::close(answers[1]);
  const auto next_answer = [&] {
    Answer answer{};
    EXPECT_EQ(::read(answers[0], &answer, 1), 1);
    return answer;
  };

  const testing::TempDir directory;
  std::unique_ptr<target::Target> target = *target::Target::start({.listen = *os::parse_socket_address("127.0.0.1:0")});
  std::minstd_rand random(5);
  for (unsigned round = 0; round < 9; ++round) {
    const unsigned generation = 2 * round;
    const std::string path = directory.write("object", content_of(generation));
    const target::Mapping mapping = *target->add(path);
    Order order{.address = target->address(),
                .nqn = {},
                .first_block = mapping.first_block,
                .generation = generation,
                .digests = round % 2 == 0,
                .end = false};
    target->subsystem().nqn.copy(order.nqn.data(), order.nqn.size() - 1);
    ASSERT_EQ(::write(orders[1], &order, sizeof(order)), static_cast<ssize_t>(sizeof(order)));
    EXPECT_EQ(next_answer(), Answer::right);
    // Amid its next reads, at a place that differs: data is in its socket, in the target's, and not yet read.
    const std::uint64_t sent = target->counters()[0]->bytes.load();
    while (target->counters()[0]->bytes.load() < sent + random() % kObjectBytes) std::this_thread::yield();
    ASSERT_EQ(::kill(reader, SIGSTOP), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(reader, &status, WUNTRACED), reader);
    ASSERT_TRUE(*target->unmap(mapping.first_block));
    if (round % 3 == 0) {
      // The worst that a pool could do: other bytes in the same place of the disk, while some still hold the file.
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      const std::string other = content_of(generation + 1);
      file.write(other.data(), static_cast<std::streamsize>(other.size()));
    } else {
      std::filesystem::remove(path);
    }
    const target::Mapping other = *target->add(directory.write("other", content_of(generation + 1)));
    EXPECT_GT(other.first_block, mapping.first_block);
    ASSERT_EQ(::kill(reader, SIGCONT), 0);
    Answer answer = Answer::right;
    while (answer == Answer::right) answer = next_answer();
    // Bytes that changed under the target are an error of its own; wrong bytes are nowhere.
    if (round % 3 == 0) {
      EXPECT_TRUE(answer == Answer::gone || answer == Answer::other_error) << static_cast<int>(answer);
    } else {
      EXPECT_EQ(answer, Answer::gone);
    }
    ASSERT_TRUE(*target->unmap(other.first_block));
  }
  Order end;
  end.end = true;
  ASSERT_EQ(::write(orders[1], &end, sizeof(end)), static_cast<ssize_t>(sizeof(end)));
  int status = 0;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (const int fd : {orders[0], orders[1], answers[0]}) ::close(fd);
}

}  // namespace
}  // namespace infercluster::initiator
