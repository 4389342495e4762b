// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/neighbours.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/directory.h"
#include "checkpoint/restore_together.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 30;
constexpr auto kLook = 100ms;  // between two looks whether the job goes on

constexpr const char* kSwitch = "INFERCLUSTER_RESTORE_SHARED";

std::string name_of_door(const std::string& door) {
  return "infercluster-" + door;
}

// What a rank says of itself.
struct Presence {
  std::string node;  // empty: it cannot be reached
  std::string door;  // where it listens
  std::string content;
};

std::string encode(const Presence& presence) {
  exchange::Writer out;
  for (const std::string* text : {&presence.node, &presence.door, &presence.content}) out.text(*text);
  return out.take();
}

// Rank 0's answer: ranks in runs of one node each, then each node's door. Most launchers number node by node, so that
// it has a few bytes per node.
Result<std::string> nodes_of(const exchange::Exchange& job, const std::vector<std::string>& given) {
  std::map<std::string, std::uint64_t> numbers;
  std::vector<std::string> doors;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;  // ranks, node
  std::string content;
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    const std::string name = "rank " + std::to_string(job.called(static_cast<int>(rank)));
    exchange::Reader in(given[rank]);
    const std::string node(in.text());
    const std::string door(in.text());
    const std::string_view its_content = in.text();
    if (!in.complete()) {
      return Error(ErrorCode::corrupt, "what " + name + " says of itself cannot be read")
          .with_hint("Do all ranks run the same version?");
    }
    if (rank == 0) content = its_content;
    if (its_content != content) {
      std::string text = name;
      text.append(" restores ").append(its_content).append(", and rank ");
      text.append(std::to_string(job.called(0))).append(" ").append(content);
      return Error(ErrorCode::invalid_argument, std::move(text))
          .with_hint("All ranks restore the same checkpoint in one call");
    }
    const std::string key = node.empty() ? "rank " + std::to_string(rank) : node;
    const auto [found, fresh] = numbers.try_emplace(key, doors.size());
    if (fresh) doors.push_back(door);
    if (runs.empty() || runs.back().second != found->second) runs.emplace_back(0, found->second);
    ++runs.back().first;
  }
  exchange::Writer out;
  out.number(runs.size());
  for (const auto& [count, node] : runs) {
    out.number(count);
    out.number(node);
  }
  for (const std::string& door : doors) out.text(door);
  return out.take();
}

struct Node {
  std::vector<int> ranks;
  std::string door;
};

// The node of a rank.
Result<Node> decode_node(std::string_view answer, int own) {
  exchange::Reader in(answer);
  std::vector<std::uint64_t> nodes;  // by rank
  std::uint64_t count_of_nodes = 0;
  const std::uint64_t runs = in.number();
  for (std::uint64_t i = 0; i < runs && !in.failed(); ++i) {
    const std::uint64_t count = in.number();
    const std::uint64_t node = in.number();
    if (in.failed() || count > static_cast<std::uint64_t>(exchange::kRanksMax) - nodes.size() ||
        node > count_of_nodes) {
      break;
    }
    nodes.resize(nodes.size() + count, node);
    count_of_nodes = std::max(count_of_nodes, node + 1);
  }
  std::vector<std::string> doors;
  for (std::uint64_t i = 0; i < count_of_nodes && !in.failed(); ++i) doors.emplace_back(in.text());
  if (!in.complete() || static_cast<std::size_t>(own) >= nodes.size()) {
    return Error(ErrorCode::corrupt, "what rank 0 says of the nodes cannot be read")
        .with_hint("Do all ranks run the same version?");
  }
  const std::uint64_t node = nodes[static_cast<std::size_t>(own)];
  Node found{{}, doors[node]};
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (nodes[rank] == node) found.ranks.push_back(static_cast<int>(rank));
  }
  return found;
}

std::string encode(const std::vector<std::string>& texts) {
  exchange::Writer out;
  for (const std::string& text : texts) out.text(text);
  return out.take();
}

}  // namespace

std::string neighbourhood() {
  const char* const value = std::getenv(kSwitch);  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
  return value != nullptr && std::string_view(value) == "0" ? std::string() : os::socket_neighbourhood();
}

Status Neighbours::meet(const std::string& content, exchange::Deadline deadline) {
  // It listens before anybody is told of it.
  const std::string door = random_id() + random_id();
  IC_TRY(listener_, os::LocalListener::open(name_of_door(door), job_.world()));
  const Presence own{neighbourhood(), door, content};
  const auto decide = [this](const std::vector<std::string>& given) { return nodes_of(job_, given); };
  IC_TRY(const std::string answer, job_.decide("nodes", encode(own), decide, deadline));
  IC_TRY(Node node, decode_node(answer, job_.rank()));
  ranks_ = std::move(node.ranks);
  self_ = static_cast<std::size_t>(std::ranges::find(ranks_, job_.rank()) - ranks_.begin());
  return self_ == 0 ? let_in_others(deadline) : connect_to_first(node.door, deadline);
}

Status Neighbours::connect_to_first(const std::string& door, exchange::Deadline deadline) {
  listener_.reset();
  auto socket = os::LocalSocket::connect(name_of_door(door));
  if (!socket.ok())
    return std::move(socket).error().with_hint("Where processes of a node may not reach each other, set " +
                                               std::string(kSwitch) + "=0: each then reads for itself");
  connections_.push_back({0, std::move(socket).value()});
  return connections_[0].socket.send(std::to_string(self_), -1, deadline);
}

Status Neighbours::let_in_others(exchange::Deadline deadline) {
  constexpr std::uint64_t kHelloBytesMax = 20;
  std::set<std::size_t> missing;
  for (std::size_t neighbour = 1; neighbour < ranks_.size(); ++neighbour) missing.insert(neighbour);
  while (!missing.empty()) {
    IC_TRY(std::optional<os::LocalSocket> socket, listener_->accept(steady_clock().now() + kLook));
    IC_CHECK(watch());
    if (socket) {
      IC_TRY(const os::LocalSocket::Message hello, socket->receive(kHelloBytesMax, deadline));
      for (const std::size_t neighbour : missing) {
        if (hello.bytes != std::to_string(neighbour)) continue;
        connections_.push_back({neighbour, *std::move(socket)});
        missing.erase(neighbour);
        break;
      }
    } else if (steady_clock().now() >= deadline) {
      return Error(ErrorCode::timed_out, name_of(*missing.begin()) + " of this node did not come to restore");
    }
  }
  std::ranges::sort(connections_, {}, &Connection::to);
  return {};
}

Result<std::vector<std::string>> Neighbours::share(const std::string& text, exchange::Deadline deadline) {
  if (ranks_.size() == 1) return std::vector<std::string>{text};
  std::vector<std::string> texts{text};
  if (self_ == 0) {
    for (Connection& connection : connections_) {
      IC_TRY(os::LocalSocket::Message message, receive(connection, deadline));
      texts.push_back(std::move(message.bytes));
    }
    for (Connection& connection : connections_) IC_CHECK(connection.socket.send(encode(texts), -1, deadline));
    return texts;
  }
  IC_CHECK(connections_[0].socket.send(text, -1, deadline));
  IC_TRY(const os::LocalSocket::Message message, receive(connections_[0], deadline));
  exchange::Reader in(message.bytes);
  texts.clear();
  for (std::size_t i = 0; i < ranks_.size(); ++i) texts.emplace_back(in.text());
  if (in.complete()) return texts;
  return Error(ErrorCode::corrupt, "what the ranks of this node said cannot be read")
      .with_hint("Do all ranks run the same version?");
}

Result<os::SharedMemory> Neighbours::share_memory(std::uint64_t bytes, exchange::Deadline deadline) {
  if (self_ == 0) {
    IC_TRY(os::SharedMemory memory, os::SharedMemory::create(bytes));
    for (Connection& connection : connections_) IC_CHECK(connection.socket.send("", memory.fd(), deadline));
    return memory;
  }
  IC_TRY(os::LocalSocket::Message message, receive(connections_[0], deadline));
  return os::SharedMemory::map(std::move(message.passed), bytes);
}

Result<os::LocalSocket::Message> Neighbours::receive(Connection& from, exchange::Deadline deadline) {
  while (!from.socket.wait_readable(steady_clock().now() + kLook)) {
    IC_CHECK(check_job());
    if (steady_clock().now() < deadline) continue;
    return Error(ErrorCode::timed_out, name_of(from.to) + " of this node did not answer");
  }
  auto message = from.socket.receive(kMessageBytesMax, deadline);
  if (!message.ok() && from.socket.ended()) return has_ended(from.to);
  return message;
}

// Less often where many ranks ask the same store.
Status Neighbours::check_job() {
  const Clock::TimePoint now = steady_clock().now();
  if (now < next_check_) return {};
  next_check_ = now + std::max<Clock::Duration>(kLook, job_.job_world() * 125us);
  return job_.check();
}

Status Neighbours::watch() {
  IC_CHECK(check_job());
  return look();
}

Status Neighbours::look() const {
  for (const Connection& connection : connections_) {
    if (connection.socket.ended()) return has_ended(connection.to);
  }
  return {};
}

std::string Neighbours::name_of(std::size_t neighbour) const {
  return "rank " + std::to_string(job_.called(ranks_[neighbour]));
}

Error Neighbours::has_ended(std::size_t neighbour) const {
  return Error(ErrorCode::io,
               "the process of " + name_of(neighbour) + " ended while the ranks of its node restored together")
      .with_hint("See what ended it; the kernel's log says so where memory ran out");
}

}  // namespace infercluster::checkpoint
