// SPDX-License-Identifier: Apache-2.0
// The names that checkpoints are made of. What bears another name is not ours, and is never removed. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace infercluster::checkpoint {

inline constexpr std::string_view kCommitName = "COMMIT";

std::string step_name(std::uint64_t step);                            // "step-100"
std::optional<std::uint64_t> parse_step_name(std::string_view name);  // without leading zeros

// What rank 3 has on a fast tier: "rank-3".
std::string rank_name(std::uint64_t rank);
std::optional<std::uint64_t> parse_rank_name(std::string_view name);

// "node-3.0.1.safetensors": segment 0 of writer 3 in epoch 1. "node-3.1.index.json": its index.
struct WriterFile {
  std::uint64_t node = 0;
  std::uint64_t epoch = 0;
};
std::string segment_name(const WriterFile& writer, std::uint64_t number);
std::string index_name(const WriterFile& writer);
// The first commit of a directory is "COMMIT"; a replacement's is "COMMIT.2" until the old epoch is gone.
std::string commit_name(std::uint64_t epoch);
std::string commit_temporary_name(std::uint64_t epoch);  // "COMMIT.2.tmp"
// Put down by rank 0, so that the others know that they have opened the directory of this very save.
std::string mark_name(std::uint64_t epoch, std::string_view save_id);  // ".save-2-0123456789abcdef"
// How far a copy of a segment has come: so many bytes of it outlive the power. ".copied-3.0.1-1073741824".
std::string progress_name(const WriterFile& writer, std::uint64_t number, std::uint64_t bytes);
// The bytes, where it is a name for this segment.
std::optional<std::uint64_t> parse_progress_name(std::string_view name, const WriterFile& writer, std::uint64_t number);
bool is_progress_name(std::string_view name);
std::string trash_name(std::uint64_t step, std::string_view id);  // ".trash-step-100-0123456789abcdef"
bool is_trash_name(std::string_view name);

// A file of a step's directory that we made; its epoch ("COMMIT": 0).
std::optional<std::uint64_t> epoch_of_file(std::string_view name);
// The epoch of "COMMIT" (0) or "COMMIT.N" (N).
std::optional<std::uint64_t> epoch_of_commit(std::string_view name);

}  // namespace infercluster::checkpoint
