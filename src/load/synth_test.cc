// SPDX-License-Identifier: Apache-2.0
#include "load/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/units.h"
#include "load/repository.h"
#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;
using infercluster::testing::TempDir;
using safetensors::Dtype;
using ::testing::HasSubstr;

constexpr SynthPreset kPresets[] = {SynthPreset::llama_8b_like, SynthPreset::mixture_like, SynthPreset::many_small};

std::vector<std::byte> content_of(std::uint64_t seed, std::string_view name, Dtype dtype, std::uint64_t offset,
                                  std::size_t bytes) {
  std::vector<std::byte> content(bytes);
  SynthContent(seed, name, dtype).fill(offset, content);
  return content;
}

TEST(SynthContent, AnyBlockCanBeMadeAgain) {
  const auto whole = content_of(7, "a", Dtype::bf16, 0, 3 * kSynthBlockBytes + 13);
  const auto tail = content_of(7, "a", Dtype::bf16, 2 * kSynthBlockBytes, kSynthBlockBytes + 13);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 2 * kSynthBlockBytes));
  EXPECT_NE(content_of(8, "a", Dtype::bf16, 0, 64), content_of(7, "a", Dtype::bf16, 0, 64));
  EXPECT_NE(content_of(7, "b", Dtype::bf16, 0, 64), content_of(7, "a", Dtype::bf16, 0, 64));
  EXPECT_NE(content_of(7, "a", Dtype::bf16, kSynthBlockBytes, 64), content_of(7, "a", Dtype::bf16, 0, 64));
}

TEST(SynthContent, IsTheSameOnEveryMachine) {
  // Computed once by another implementation.
  const auto bytes = content_of(1, "model.norm.weight", Dtype::bf16, 0, 8);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  EXPECT_EQ(word, 0x3C323D0D3C733D16U);
}

TEST(SynthContent, ValuesAreFiniteAndSmall) {
  const auto f32 = content_of(3, "x", Dtype::f32, 0, kSynthBlockBytes);
  for (std::size_t i = 0; i < f32.size(); i += 4) {
    float value = 0;
    std::memcpy(&value, f32.data() + i, sizeof value);
    ASSERT_TRUE(std::isnormal(value) && std::abs(value) < 0.125F) << value;
  }
  const auto bf16 = content_of(3, "x", Dtype::bf16, 0, kSynthBlockBytes);
  std::set<std::uint16_t> distinct;
  for (std::size_t i = 0; i < bf16.size(); i += 2) {
    std::uint16_t half = 0;
    std::memcpy(&half, bf16.data() + i, sizeof half);
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    ASSERT_TRUE(std::isnormal(value) && std::abs(value) < 0.125F) << value;
    distinct.insert(half);
  }
  EXPECT_EQ(distinct.size(), 1024U);  // every sign, exponent and mantissa that is allowed
  for (const std::byte value : content_of(3, "x", Dtype::f8_e4m3, 0, kSynthBlockBytes)) {
    ASSERT_NE(std::to_integer<unsigned>(value) & 0x7F, 0x7FU);
  }
}

TEST(SynthModel, SizesAreWithinOnePercent) {
  for (const SynthPreset preset : kPresets) {
    for (const std::uint64_t bytes :
         {4 * kMiB, 10'000'001UL, 100 * kMiB, kGiB, 3 * kGiB + 12345, 16 * kGiB, 100 * kGiB, 1024 * kGiB}) {
      if (preset == SynthPreset::many_small && bytes > 100 * kMiB) continue;  // 100,000 tensors from there on
      const auto model = synthesize_model(preset, bytes);
      ASSERT_TRUE(model.ok()) << name_of(preset) << " " << bytes << model.error().to_string();
      EXPECT_LE(model->bytes, bytes);
      EXPECT_GE(static_cast<double>(model->bytes), 0.99 * static_cast<double>(bytes))
          << name_of(preset) << " " << bytes;
      EXPECT_EQ(model->shape.hidden % 128, 0U);
      if (model->shape.hidden > 0) {
        EXPECT_EQ(model->shape.heads() % model->shape.key_value_heads, 0U);
      }
    }
  }
  EXPECT_GE(synthesize_model(SynthPreset::llama_8b_like, kMiB).value().bytes, kMiB * 99 / 100);
  EXPECT_EQ(synthesize_model(SynthPreset::llama_8b_like, kMiB - 1).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(synthesize_model(SynthPreset::many_small, UINT64_MAX).error().code(), ErrorCode::invalid_argument);
}

TEST(SynthModel, LooksLikeTheRealOne) {
  const SynthModel model =
      synthesize_model(SynthPreset::llama_8b_like, 16'060'522'496).value();  // the size of the real one
  EXPECT_NEAR(static_cast<double>(model.shape.hidden), 4096, 256);
  EXPECT_NEAR(static_cast<double>(model.shape.layers), 32, 3);
  std::set<std::string> names;
  for (const auto& tensor : model.tensors) EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.31.mlp.down_proj.weight",
        "model.layers.7.input_layernorm.weight", "model.norm.weight", "lm_head.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(SynthPreset, NamesAreParsedBack) {
  for (const SynthPreset preset : kPresets) EXPECT_EQ(parse_synth_preset(name_of(preset)), preset);
  EXPECT_EQ(parse_synth_preset("gpt"), std::nullopt);
}

TEST(Synth, WritesARepositoryThatOpens) {
  for (const SynthPreset preset : kPresets) {
    const TempDir dir;
    std::uint64_t done = 0;
    const SynthOptions options{.preset = preset,
                               .bytes = preset == SynthPreset::many_small ? kMiB : 24 * kMiB,
                               .seed = 5,
                               .progress = [&done](Progress progress) {
                                 EXPECT_GT(progress.bytes_done, done);
                                 done = progress.bytes_done;
                                 return true;
                               }};
    const auto report = write_synthetic_repository(dir.file("new/model"), options);
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    const Result<Repository> repository = open_repository(dir.file("new/model"));
    ASSERT_TRUE(repository.ok()) << repository.error().to_string();
    EXPECT_TRUE(repository->warnings.empty());
    EXPECT_EQ(repository->bytes(), report->bytes);
    EXPECT_EQ(done, report->bytes);
    EXPECT_EQ(repository->tables().tensors.size(), report->tensors);
    EXPECT_EQ(report->shards.size(), repository->shards().size());
    EXPECT_GE(report->shards.size(), 3U);
    std::uint64_t file_bytes = 0;
    for (const auto& entry : fs::directory_iterator(dir.file("new/model"))) file_bytes += entry.file_size();
    EXPECT_EQ(file_bytes, report->file_bytes);
    for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      EXPECT_TRUE(fs::exists(dir.file("new/model/" + std::string(name)))) << name;
    }
    for (const TensorRef& ref : {repository->tables().tensors.front(), repository->tables().tensors.back()}) {
      const safetensors::Tensor& tensor = repository->tensor(ref);
      const RepositoryShard& shard = repository->shards()[ref.shard];
      std::vector<std::byte> bytes(tensor.bytes());
      ASSERT_TRUE(os::read_exactly(shard.fd, bytes, shard.header.data_begin() + tensor.begin, shard.path));
      EXPECT_EQ(bytes, content_of(5, tensor.name, tensor.dtype, 0, bytes.size())) << tensor.name;
    }
  }
}

TEST(Synth, ShardsAreCutAsAsked) {
  const TempDir dir;
  EXPECT_EQ(write_synthetic_repository(dir.file("one"), {.bytes = kMiB, .shards = 1}).value().shards.size(), 1U);
  const auto six =
      write_synthetic_repository(dir.file("six"), {.preset = SynthPreset::many_small, .bytes = kMiB, .shards = 6})
          .value();
  ASSERT_EQ(six.shards.size(), 6U);
  EXPECT_THAT(six.shards[5], HasSubstr("model-00006-of-00006.safetensors"));
}

TEST(Synth, NothingIsOverwrittenAndNothingIsLeftOfAFailure) {
  const TempDir dir;
  dir.write("full/file", "mine");
  const auto refused = write_synthetic_repository(dir.file("full"), {.bytes = kMiB});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("not empty"));
  EXPECT_TRUE(fs::exists(dir.file("full/file")));

  const SynthOptions cancelled{.bytes = 4 * kMiB,
                               .progress = [](Progress progress) { return progress.bytes_done < kMiB; }};
  EXPECT_EQ(write_synthetic_repository(dir.file("new"), cancelled).error().code(), ErrorCode::cancelled);
  EXPECT_FALSE(fs::exists(dir.file("new")));
  fs::create_directory(dir.file("empty"));
  EXPECT_EQ(write_synthetic_repository(dir.file("empty"), cancelled).error().code(), ErrorCode::cancelled);
  EXPECT_TRUE(fs::is_empty(dir.file("empty")));
  const SynthOptions huge{.bytes = kSynthBytesMax,
                          .progress = [](Progress) { return false; }};  // should there be the space for it
  const bool fits = fs::space(dir.path()).available > 2 * kSynthBytesMax;
  EXPECT_EQ(write_synthetic_repository(dir.file("huge"), huge).error().code(),
            fits ? ErrorCode::cancelled : ErrorCode::too_large);
  EXPECT_FALSE(fs::exists(dir.file("huge")));
  EXPECT_EQ(write_synthetic_repository(dir.file("full/file"), {.bytes = kMiB}).ok(), false);
}

}  // namespace
}  // namespace infercluster::load
