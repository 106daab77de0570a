// The panel beside the chat: model, key, sampling, reasoning, system prompt, tools.
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { apiKey, setApiKey } from "../api";
import { model, models } from "./conversation";
import { change, emptySettings, exampleTools, faults, settings, type Settings } from "./settings";

type Field = keyof Settings;

function Labelled({
  label,
  field,
  hint,
  children,
}: {
  label: string;
  field?: Field;
  hint?: string;
  children: (ids: { id: string; describedBy: string; invalid: boolean }) => ComponentChildren;
}) {
  const id = useId();
  const fault = field ? faults.value[field] : undefined;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, describedBy: `${id}-hint`, invalid: Boolean(fault) })}
      <p id={`${id}-hint`} class={fault ? "hint fault" : "hint"}>
        {fault ?? hint}
      </p>
    </div>
  );
}

function NumberField({ label, field, hint }: { label: string; field: Field; hint?: string }) {
  return (
    <Labelled label={label} field={field} hint={hint}>
      {({ id, describedBy, invalid }) => (
        <input
          id={id}
          inputMode="decimal"
          autocomplete="off"
          placeholder="default"
          value={settings.value[field]}
          aria-describedby={describedBy}
          aria-invalid={invalid}
          onInput={(event) => change({ [field]: event.currentTarget.value })}
        />
      )}
    </Labelled>
  );
}

export function Parameters() {
  const s = settings.value;
  const changed = JSON.stringify(s) !== JSON.stringify(emptySettings);
  return (
    <div class="parameters">
      <Labelled label="Model">
        {({ id }) => (
          <select id={id} value={model.value} onChange={(event) => (model.value = event.currentTarget.value)}>
            {models.value.map((m) => (
              <option key={m.id} value={m.id}>
                {m.id}
              </option>
            ))}
          </select>
        )}
      </Labelled>
      <Labelled label="System prompt">
        {({ id }) => (
          <textarea
            id={id}
            rows={3}
            value={s.system}
            placeholder="None"
            onInput={(event) => change({ system: event.currentTarget.value })}
          />
        )}
      </Labelled>
      <div class="pair">
        <NumberField label="Temperature" field="temperature" />
        <NumberField label="Top p" field="topP" />
        <NumberField label="Max tokens" field="maxTokens" />
        <NumberField label="Seed" field="seed" />
      </div>
      <Labelled label="Reasoning effort" hint="For models that reason.">
        {({ id, describedBy }) => (
          <select
            id={id}
            value={s.effort}
            aria-describedby={describedBy}
            onChange={(event) => change({ effort: event.currentTarget.value as Settings["effort"] })}
          >
            <option value="">Model's default</option>
            {["none", "low", "medium", "high"].map((level) => (
              <option key={level} value={level}>
                {level}
              </option>
            ))}
          </select>
        )}
      </Labelled>
      <Labelled label="Tools" field="tools" hint="JSON as in the API. You answer the calls yourself.">
        {({ id, describedBy, invalid }) => (
          <textarea
            id={id}
            class="code-text"
            rows={s.tools ? 8 : 2}
            spellcheck={false}
            value={s.tools}
            placeholder="None"
            aria-describedby={describedBy}
            aria-invalid={invalid}
            onInput={(event) => change({ tools: event.currentTarget.value })}
          />
        )}
      </Labelled>
      {!s.tools && (
        <button type="button" class="quiet-button" onClick={() => change({ tools: exampleTools })}>
          Insert an example tool
        </button>
      )}
      <Labelled label="API key" hint="Only where the server asks for one. Forgotten with this tab.">
        {({ id, describedBy }) => (
          <input
            id={id}
            type="password"
            autocomplete="off"
            placeholder="None"
            value={apiKey.value}
            aria-describedby={describedBy}
            onChange={(event) => setApiKey(event.currentTarget.value.trim())}
          />
        )}
      </Labelled>
      {changed && (
        <button type="button" class="quiet-button" onClick={() => (settings.value = { ...emptySettings })}>
          Back to defaults
        </button>
      )}
    </div>
  );
}
