/** Reads JSON Schema as far as a form needs it, and form texts as JSON. Other values are edited as JSON. */
import type { Json } from "../api";

/** The parts of JSON Schema that a form reads. */
export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string | string[];
  title?: string;
  description?: string;
  default?: Json;
  enum?: Json[];
  const?: Json;
  format?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: boolean | Schema;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
}

export type Kind = "text" | "number" | "whole" | "yes-no" | "choice" | "moment" | "json";

export interface Input {
  name: string;
  kind: Kind;
  required: boolean;
  nullable: boolean;
  hint: string;
  choices: Json[];
  fallback: Json | undefined;
}

/** Follows `$ref` within the document, and takes the one part of a union with null. */
function resolved(schema: Schema, root: Schema, depth = 0): { schema: Schema; nullable: boolean } {
  if (depth > 8) return { schema: {}, nullable: false };
  if (schema.$ref?.startsWith("#/$defs/")) {
    const target = root.$defs?.[schema.$ref.slice(8)];
    if (target) return resolved({ ...target, ...without(schema) }, root, depth + 1);
  }
  const union = schema.anyOf ?? schema.oneOf;
  if (union) {
    const parts = union.filter((each) => each.type !== "null");
    const nullable = parts.length < union.length;
    if (parts.length !== 1) return { schema: { ...schema }, nullable };
    const inner = resolved(
      { ...parts[0]!, ...(schema.default !== undefined && { default: schema.default }) },
      root,
      depth + 1,
    );
    return { schema: inner.schema, nullable: nullable || inner.nullable };
  }
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((each) => each !== "null");
    const { type: _, ...rest } = schema;
    return {
      schema: types.length === 1 ? { ...rest, type: types[0]! } : rest,
      nullable: types.length < schema.type.length,
    };
  }
  return { schema, nullable: false };
}

function without({ $ref: _, ...rest }: Schema): Schema {
  return rest;
}

function kindOf(schema: Schema): Kind {
  if (schema.enum) return "choice";
  if (schema.anyOf || schema.oneOf) return "json";
  if (schema.type === "string") return schema.format === "date-time" ? "moment" : "text";
  if (schema.type === "integer") return "whole";
  if (schema.type === "number") return "number";
  return schema.type === "boolean" ? "yes-no" : "json";
}

/** The inputs of a form for an object's properties; null if the schema describes no object with named properties. */
export function inputsOf(json: Json): Input[] | null {
  if (typeof json !== "object" || json === null || Array.isArray(json)) return null;
  const root = json as Schema;
  const { schema: object } = resolved(root, root);
  if (!object.properties) return null;
  return Object.entries(object.properties).map(([name, property]) => {
    const { schema, nullable } = resolved(property, root);
    return {
      name,
      kind: kindOf(schema),
      required: object.required?.includes(name) ?? false,
      nullable,
      hint: schema.description ?? bounds(schema),
      choices: schema.enum ?? [],
      fallback: schema.default,
    };
  });
}

function bounds({ minimum, maximum, format }: Schema): string {
  if (minimum !== undefined && maximum !== undefined) return `From ${minimum} to ${maximum}.`;
  if (minimum !== undefined) return `${minimum} or more.`;
  if (maximum !== undefined) return `${maximum} or less.`;
  return format ? `Format: ${format}.` : "";
}

/** The text of a form field for a value. */
export function textOf(kind: Kind, value: Json | undefined): string {
  if (value === undefined || (value === null && kind !== "json")) return "";
  if (kind === "json") return JSON.stringify(value, null, 2);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The value of a form field; undefined: leave the argument out. Throws an Error with words for the reader. */
export function valueOf(input: Input, text: string): Json | undefined {
  if (text === "" && !input.required) return input.nullable && input.fallback === undefined ? null : undefined;
  if (input.kind === "text" || input.kind === "moment") return text;
  if (text === "") throw new Error("A value is required.");
  if (input.kind === "choice") return input.choices.find((each) => textOf("choice", each) === text) ?? text;
  if (input.kind === "yes-no") return text === "true";
  if (input.kind === "json") return parseJson(text);
  const number = Number(text);
  if (!Number.isFinite(number) || (input.kind === "whole" && !Number.isInteger(number))) {
    throw new Error(input.kind === "whole" ? "Expected a whole number." : "Expected a number.");
  }
  return number;
}

export function parseJson(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch (error) {
    throw new Error(`Expected JSON: ${error instanceof Error ? error.message : "unreadable"}`);
  }
}
