"""The strict compiler between context and provider. Pure, and it never fails.

Whatever is in a context, what comes out is a conversation every vendor accepts.

    compiled   what comes out            answers     one model's answer
    rules      what vendors differ in    parts       what only its own model understands
    compiler   message by message        user_side   what is said between two answers
    growing    only what is new          names       ids of calls, names of tools
    repairs    what was changed          texts       texts and arguments
"""

from nplt_server.providers.compiling.compiled import (
    AnswerBlock,
    AssistantStep,
    Compiled,
    CompiledCall,
    CompiledImage,
    CompiledResult,
    OpaqueBlock,
    ReasoningBlock,
    Repair,
    RepairCode,
    Step,
    TextBlock,
    UserStep,
    blocks_of,
)
from nplt_server.providers.compiling.compiler import compile_context
from nplt_server.providers.compiling.growing import ContextCompiler
from nplt_server.providers.compiling.rules import VendorRules

__all__ = [
    "AnswerBlock",
    "AssistantStep",
    "Compiled",
    "CompiledCall",
    "CompiledImage",
    "CompiledResult",
    "ContextCompiler",
    "OpaqueBlock",
    "ReasoningBlock",
    "Repair",
    "RepairCode",
    "Step",
    "TextBlock",
    "UserStep",
    "VendorRules",
    "blocks_of",
    "compile_context",
]
