"""Small models that see, for ``seeing.py``: shapes, processors, and templates as real ones are."""

from __future__ import annotations

from typing import Any


def named(tokens: str) -> dict[str, str]:
    """Return control tokens by what they are for."""
    return dict(token.split("=", 1) for token in tokens.split())


def mrope(*sections: int, **more: float) -> dict[str, Any]:
    """Return positions of several axes, each with its section of a head."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [*sections]}
    return {"rope_parameters": rope | more}


PARTS = (
    "{% for c in m.content %}{% if c.type == 'image' %}IMAGE{% elif c.type == 'text' %}"
    "{{ c.text }}{% endif %}{% endfor %}"
)
STRING = f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{PARTS}{{% endif %}}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + STRING + "{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
IMAGES_FIRST = (
    "{% for c in m.content | selectattr('type', 'equalto', 'image') %}IMAGE{% endfor %}"
    "{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ TEXT }}{% endfor %}"
)
IDEFICS = (
    "{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content[0].type == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}" + PARTS + ""
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
).replace("IMAGE", "<image>")
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    + STRING.replace("m.content }}", "m.content | trim }}").replace("c.text }}", "c.text | trim }}")
    + "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]" + STRING + "[/INST]"
    "{% elif m.role == 'system' %}[SYSTEM_PROMPT]" + STRING + "[/SYSTEM_PROMPT]"
    "{% else %}" + STRING + "{{ eos_token }}{% endif %}{% endfor %}"
).replace("IMAGE", "[IMG]")
LLAVA_NEXT = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' }}"
    + IMAGES_FIRST.replace("IMAGE", "{{ '<image>\n' }}").replace("TEXT", "c.text")
    + "{{ ' [/INST]' }}{% else %}{{ ' ' + m.content[0].text + '</s> ' }}{% endif %}{% endfor %}"
)
ONEVISION = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' * (m.role != 'assistant') }}"
    + IMAGES_FIRST.replace("IMAGE", "<image>").replace("TEXT", "'\n' + c.text")
    + "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' }}" + STRING + "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
).replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>")
COHERE = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "<|{{ 'CHATBOT' if m.role == 'assistant' else m.role | upper }}_TOKEN|>" + STRING + ""
    "<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)

QWEN_TOKENS = named(
    "image=<|image_pad|> video=<|video_pad|> vision_start=<|vision_start|> "
    "vision_end=<|vision_end|>"
)
QWEN = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096,
}  # fmt: skip
EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "depth": 2, "num_heads": 2, "out_hidden_size": 32,
}  # fmt: skip
MROPE = mrope(2, 3, 3)
GRID = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}}
LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
PINPOINTS = [[28, 28], [28, 56], [56, 28], [56, 56]]
SIGLIP = EYES | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
SCALED = {"query_pre_attn_scalar": 16, "sliding_window": 16}
SQUARE = {"size": {"height": 28, "width": 28}}


def of_qwen(model: str, text: Any = MROPE, **eyes: Any) -> dict[str, Any]:
    """Return what makes a model small that reads pictures of any size, as Qwen2-VL does."""
    return {
        "text": text,
        "eyes": eyes,
        "tokens": QWEN_TOKENS,
        "template": QWEN,
        "images": ("Qwen2VL", GRID | {"patch_size": eyes.get("patch_size", 14)}),
        "video": "Qwen3VL" if "3" in model else "Qwen2VL",
        "processor": (
            {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}.get(model, "Qwen3VL"),
            {},
        ),
    }


QWEN3 = {"patch_size": 14, "num_position_embeddings": 16}
IDEFICS_IMAGES = {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": 28}}
IDEFICS_TOKENS = " ".join(f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4))
SPLIT = {
    "text": {"model_type": "llama"},
    "eyes": {"image_size": 28, "patch_size": 7},
    "config": {"scale_factor": 2},
    "tokens": named(
        "image=<image> fake_image=<fake_token_around_image> "
        "global_image=<global-img> end_of_utterance=<end_of_utterance>"
    ),
    "more_tokens": IDEFICS_TOKENS,
    "template": IDEFICS,
}
GLM_TOKENS = named(
    "image=<|image|> video=<|video|> image_start=<|begin_of_image|> "
    "image_end=<|end_of_image|> video_start=<|begin_of_video|> "
    "video_end=<|end_of_video|>"
)
GLM4V = {
    "text": mrope(1, 1, 2, partial_rotary_factor=0.5),
    "eyes": {"image_size": 56},
    "tokens": GLM_TOKENS,
    "template": GLM,
    "images": ("Glm4v", GRID),
    "video": "Glm4v",
    "processor": ("Glm4v", {}),
}  # fmt: skip

EXP = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v3", "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 2,
}  # fmt: skip

SEEING: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": of_qwen("qwen2_5_vl", window_size=56, fullatt_block_indexes=[1]),
    "qwen3_vl": of_qwen("qwen3_vl", deepstack_visual_indexes=[0], **QWEN3),
    "smolvlm": SPLIT
    | {
        "images": ("SmolVLM", IDEFICS_IMAGES),
        "video": "SmolVLM",
        "processor": ("SmolVLM", {"image_seq_len": 4}),
    },
    "idefics3": SPLIT
    | {
        "images": ("Idefics3", IDEFICS_IMAGES),
        "processor": ("Idefics3", {"image_seq_len": 4}),
    },
    "internvl": {
        "text": {"model_type": "qwen2"},
        "eyes": {"image_size": [28, 28], "patch_size": [7, 7]},
        "tokens": named(
            "start_image=<img> end_image=</img> context_image=<IMG_CONTEXT> video=<video>"
        ),
        "image": "context_image",
        "template": CHATML.replace("IMAGE", "{{ '<IMG_CONTEXT>\n' }}"),
        "images": ("GotOcr2", SQUARE | {"max_patches": 4}),
        "video": "InternVL",
        "processor": ("InternVL", {"image_seq_length": 4}),
    },
    "gemma3": {
        "text": SCALED,
        "eyes": SIGLIP | {"patch_size": 7},
        "config": {"mm_tokens_per_image": 4},
        "tokens": named("image=<image_soft_token> boi=<start_of_image> eoi=<end_of_image>"),
        "template": GEMMA.replace("IMAGE", "<start_of_image>"),
        "images": ("Gemma3", SQUARE),
        "processor": ("Gemma3", {"image_seq_length": 4}),
    },
    "llava_onevision": {
        "shown": ((True, False, False), (False,) * 3, (False, True, False)),
        "text": {"model_type": "qwen2"},
        "eyes": SIGLIP,
        "config": {"image_grid_pinpoints": PINPOINTS},
        "tokens": named("image=<image> video=<video>"),
        "template": ONEVISION,
        "images": ("LlavaOnevision", SQUARE | {"image_grid_pinpoints": PINPOINTS}),
        "video": "LlavaOnevision",
        "processor": (
            "LlavaOnevision",
            {"num_image_tokens": 4, "vision_feature_select_strategy": "full"},
        ),
    },
    "mistral3": {
        "text": {"model_type": "mistral", "sliding_window": None},
        "eyes": {"model_type": "pixtral", "image_size": 84, "patch_size": 14, "head_dim": 16},
        "config": {"spatial_merge_size": 2},
        "tokens": named("image=[IMG] image_break=[IMG_BREAK] image_end=[IMG_END]"),
        "template": INST,
        "images": (
            "Pixtral",
            {"size": {"longest_edge": 84}, "patch_size": {"height": 14, "width": 14}},
        ),
        "processor": ("Pixtral", {"patch_size": 14, "spatial_merge_size": 2}),
    },
    "qwen2_vl": of_qwen("qwen2_vl", embed_dim=32, hidden_size=32, mlp_ratio=2),
    "qwen3_vl_moe": of_qwen(
        "qwen3_vl_moe",
        MROPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        deepstack_visual_indexes=[0],
        **QWEN3,
    ),
    "qwen3_5": of_qwen("qwen3_5", MROPE | LINEAR, **QWEN3),
    "llava": {
        "text": {"model_type": "llama"},
        "eyes": SIGLIP | {"model_type": "clip_vision_model", "projection_dim": 32},
        "config": {"vision_feature_layer": -1, "image_seq_length": 4},
        "tokens": named("image=<image>"),
        "template": CHATML.replace("IMAGE", "{{ '<image>\n' }}"),
        "images": ("CLIP", {"size": {"shortest_edge": 28}, "crop_size": SQUARE["size"]}),
        "processor": (
            "Llava",
            {
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
                "num_additional_image_tokens": 1,
            },
        ),
    },
    "llava_next": {
        "text": {"model_type": "mistral", "sliding_window": None},
        "eyes": SIGLIP | {"model_type": "clip_vision_model", "projection_dim": 32},
        "config": {"vision_feature_layer": -1, "image_grid_pinpoints": PINPOINTS[1:]},
        "tokens": named("image=<image>"),
        "template": LLAVA_NEXT,
        "images": (
            "LlavaNext",
            {
                "size": {"shortest_edge": 28},
                "crop_size": SQUARE["size"],
                "image_grid_pinpoints": PINPOINTS[1:],
            },
        ),
        "processor": (
            "LlavaNext",
            {
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
                "num_additional_image_tokens": 1,
            },
        ),
    },
    "pixtral": {},
    "glm4v": GLM4V,
    "glm46v": GLM4V | {"images": ("Glm46V", GRID), "video": "Glm46V", "processor": ("Glm46V", {})},
    "cohere2_vision": {
        "text": {"model_type": "cohere2", "sliding_window": 16, "logit_scale": 0.25},
        "eyes": SIGLIP | {"patch_size": 7},
        "config": {"alignment_intermediate_size": 32, "downsample_factor": 2},
        "tokens": named(
            "image=<|IMG_PATCH|> boi=<|START_OF_IMG|> eoi=<|END_OF_IMG|> "
            "img_line_break=<|IMG_LINE_BREAK|>"
        ),
        "template": COHERE.replace("IMAGE", "<|IMG_PATCH|>"),
        "images": ("Cohere2Vision", SQUARE | {"patch_size": 2, "max_patches": 4}),
        "processor": ("Cohere2Vision", {}),
    },
    "lfm2_vl": {
        "text": {
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention"],
            "conv_dim": 32,
            "block_ff_dim": 48,
            "block_multiple_of": 16,
        },
        "eyes": EYES | {"model_type": "siglip2_vision_model", "patch_size": 7, "num_patches": 64},
        "config": {"projector_hidden_size": 32},
        "tokens": named(
            "image=<image> image_start=<|image_start|> image_end=<|image_end|> "
            "image_thumbnail=<|img_thumbnail|>"
        ),
        "more_tokens": IDEFICS_TOKENS.replace("<", "<|img_").replace(">", "|>"),
        "template": "{{ bos_token }}" + CHATML.replace("IMAGE", "<image>"),
        "images": (
            "Lfm2Vl",
            {
                "encoder_patch_size": 7,
                "tile_size": 28,
                "min_image_tokens": 4,
                "max_image_tokens": 8,
                "max_tiles": 4,
            },
        ),
        "processor": ("Lfm2Vl", {}),
    },
    "ovis2": {
        "text": {"model_type": "qwen2"},
        "eyes": {"image_size": 28, "patch_size": 7, "vocab_size": 40, "hidden_stride": 2},
        "tokens": named("image=<image>"),
        "image_token": "<IMG_ATOM>",
        "more_tokens": "<IMG_ATOM> <IMG_START> <IMG_GRID> <IMG_COL> <IMG_ROW> <IMG_END>",
        "config": {"hidden_size": 32},
        "template": CHATML.replace("IMAGE", "{{ '<image>\n' }}"),
        "images": ("Ovis2", SQUARE | {"crop_to_patches": True, "max_patches": 4}),
        "processor": ("Ovis2", {"image_seq_length": 4}),
    },
    "aya_vision": {
        "text": {"model_type": "cohere2", "sliding_window": 16, "logit_scale": 0.25},
        "eyes": SIGLIP | {"patch_size": 7},
        "config": {"downsample_factor": 2, "adapter_layer_dim": 32, "vision_feature_layer": -1},
        "tokens": named("image=<image>"),
        "more_tokens": (
            "<|IMG_PATCH|> <|START_OF_IMG|> <|END_OF_IMG|> <|IMG_LINE_BREAK|> TILE TILE_GLOBAL"
        ),
        "image_token": "<|IMG_PATCH|>",
        "template": COHERE.replace("IMAGE", "<image>"),
        "images": ("GotOcr2", SQUARE | {"max_patches": 4, "crop_to_patches": True}),
        "processor": ("AyaVision", {"patch_size": 7, "img_size": 28, "downsample_factor": 2}),
    },
    "idefics2": {
        "refused": True,
        "text": {"model_type": "mistral", "sliding_window": None},
        "eyes": {"image_size": 56, "patch_size": 7},
        "config": {
            "perceiver_config": {
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 16,
                "num_key_value_heads": 1,
            }
        },
        "tokens": named("image=<image> image_boundary=<fake_token_around_image>"),
        "template": IDEFICS,
        "images": ("Idefics2", {"size": {"shortest_edge": 28, "longest_edge": 56}}),
        "processor": ("Idefics2", {"image_seq_len": 4}),
    },
    "llama4": {
        "refused": True,
        "text": {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 64},
        "eyes": {
            "image_size": 28,
            "patch_size": 7,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "intermediate_size": 128,
        },
        "tokens": named("image=<|image|>"),
        "image_token": "<|patch|>",
        "more_tokens": (
            "<|patch|> <|image_start|> <|image_end|> <|tile_x_separator|> <|tile_y_separator|>"
        ),
        "template": CHATML.replace("IMAGE", "<|image|>"),
        "images": ("Llama4", SQUARE | {"max_patches": 4}),
        "processor": ("Llama4", {"patch_size": 7}),
    },
    "mllama": {
        "refused": True,
        "text": mrope() | {"cross_attention_layers": [1]},
        "eyes": {
            "image_size": 28,
            "patch_size": 7,
            "vision_output_dim": 64,
            "attention_heads": 2,
            "intermediate_layers_indices": [0],
            "num_global_layers": 1,
        },
        "tokens": named("image=<|image|>"),
        "more_tokens": "<|python_tag|>",
        "template": CHATML.replace("IMAGE", "<|image|>"),
        "images": ("Mllama", SQUARE),
        "processor": ("Mllama", {}),
    },
    "paligemma": {
        "refused": True,
        "text": {"model_type": "gemma"},
        "eyes": SIGLIP,
        "config": {"projection_dim": 32},
        "tokens": named("image=<image>"),
        "template": CHATML.replace("IMAGE", "<image>"),
        "images": ("Siglip", SQUARE | {"image_seq_length": 4}),
        "processor": ("PaliGemma", {}),
    },
    "gemma4": {
        "text": {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 16,
            "vocab_size_per_layer_input": 200,
            "hidden_size_per_layer_input": 8,
        },
        "eyes": {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 8,
            "position_embedding_size": 64,
            "pooling_kernel_size": 2,
        },
        "config": {"audio_config": None},
        "tokens": named(
            "image=<|image|> boi=<|image> eoi=<image|> audio=<|audio|> boa=<|audio> eoa=<audio|>"
        ),
        "template": GEMMA.replace("IMAGE", "<|image|>"),
        "images": ("Gemma4", {"patch_size": 8, "max_soft_tokens": 70, "pooling_kernel_size": 2}),
        "video": "Gemma4",
        "processor": ("Gemma4", {}),
        "sounds": "Gemma4",
    },
    "kimi_k25": {
        "text": EXP | LATENT,
        "eyes": {"pos_emb_height": 8, "pos_emb_width": 8},
        "config": {"projection_hidden_size": 32},
        "tokens": named(
            "image=<|media_pad|> video=<|video_pad|> vision_start=<|media_begin|> "
            "vision_end=<|media_end|>"
        ),
        "template": CHATML.replace("IMAGE", "<|media_begin|><|media_pad|><|media_end|>"),
        "images": ("Kimi_K25", {"size": {"max_height": 112, "max_width": 112}}),
        "video": "Kimi_K25",
        "processor": ("Kimi_K25", {}),
    },
    "glm4v_moe": GLM4V | {"text": GLM4V["text"] | EXP},
    "qwen3_5_moe": of_qwen("qwen3_5_moe", MROPE | LINEAR | EXP, **QWEN3),
    "exaone4_5": of_qwen(
        "qwen2_5_vl",
        {"model_type": "exaone4", "sliding_window": 16, "sliding_window_pattern": 2},
        window_size=56,
        fullatt_block_indexes=[1],
        num_key_value_heads=2,
    )
    | {"processor": ("Exaone4_5_", {})},
    "ernie4_5_vl_moe": {
        "text": EXP
        | mrope(3, 3, 2)
        | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [16, 16]},
        "eyes": {"patch_size": 14},
        "tokens": named(
            "image=<|IMAGE_PLACEHOLDER|> image_start=<|IMAGE_START|> "
            "image_end=<|IMAGE_END|> video=<|VIDEO|> video_start=<|VS|> "
            "video_end=<|VE|>"
        ),
        "template": CHATML.replace("IMAGE", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"),
        "images": ("Ernie4_5_VLMoe", GRID),
        "video": "Ernie4_5_VLMoe",
        "processor": ("Ernie4_5_VLMoe", {}),
        "video_settings": {"draw_on_frames": False},
    },
    "minicpmv4_6": {
        "refused": True,
        "text": {"model_type": "qwen3"},
        "eyes": {"image_size": 56, "patch_size": 14},
        "tokens": named(
            "image=<image_pad> video=<video_pad> image_start=<image> "
            "image_end=</image> slice_start=<slice> slice_end=</slice> "
            "image_id_start=<image_id> image_id_end=</image_id>"
        ),
        "template": CHATML.replace("IMAGE", "<image_pad>"),
        "images": ("MiniCPMV4_6", {}),
        "video": "MiniCPMV4_6",
        "processor": ("MiniCPMV4_6", {}),
    },
    "hunyuan_vl": {
        "refused": True,
        "text": mrope(2, 2, 2, 2),
        "eyes": {"patch_size": 14},
        "tokens": named("image=<img_pad> image_start=<img_start> image_end=<img_end> pad=<pad>"),
        "template": CHATML.replace("IMAGE", "<img_start><img_pad><img_end>"),
        "images": ("HunYuanVL", GRID | {"patch_size": 14}),
        "processor": ("HunYuanVL", {}),
    },
}
"""Name of ``transformers`` to what makes it small, and its processor and template."""
SEEING["pixtral"] = SEEING["llava"] | {
    "model": "llava",
    "text": {"model_type": "mistral", "sliding_window": None},
    "eyes": SEEING["mistral3"]["eyes"],
    "config": {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    **{key: SEEING["mistral3"][key] for key in ("tokens", "template", "images")},
    "processor": ("Pixtral", {"patch_size": 14}),
}
