"""An OpenAI-compatible server over the engine and the decoder, so that a gate has an endpoint on any machine."""
